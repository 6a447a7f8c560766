"""The mailbox: commands that reach a worker from outside, left for its children to carry out.

The worker's parent, which has no connection to the database, writes each as a file beside the
slots; a child's housekeeper takes it by renaming. A command that a killed child has taken is lost:
it can be given again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from uuid import uuid4

_WAITS, _TAKEN = "waits-", "taken-"


class Do(StrEnum):
    REVOKE = "revoke"  # cancel what waits
    CANCEL = "cancel"  # and interrupt what runs
    PAUSE = "pause"
    RESUME = "resume"
    COUNT_STRANGERS = "count strangers"  # write down how many messages of other pools were refused


@dataclass(frozen=True, slots=True)
class ControlCommand:
    do: Do
    ids: tuple[int, ...] = ()
    queue: str = ""
    reason: str = ""
    kill_after_s: float | None = None  # of a cancel


class Mailbox:
    """A folder of commands; any number of processes may leave and take."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = 0

    @classmethod
    def beside(cls, slots: Path) -> Mailbox:
        return cls(slots.with_name("commands"))

    def leave(self, command: ControlCommand) -> None:
        self._folder.mkdir(exist_ok=True)
        name = uuid4().hex
        draft = self._folder / f"draft-{name}"
        draft.write_text(json.dumps(asdict(command)))
        draft.rename(self._folder / f"{_WAITS}{name}")

    def has_news(self) -> bool:
        """Whether something came in or was done since the last call; costs one look at a folder."""
        try:
            changed = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        news, self._seen = changed != self._seen, changed
        return news

    def take(self) -> Iterator[tuple[Path, ControlCommand]]:
        """Take what waits, one by one; each wants :meth:`done` or :meth:`put_back`."""
        for path in sorted(self._folder.glob(f"{_WAITS}*")):
            taken = path.with_name(path.name.replace(_WAITS, _TAKEN))
            try:
                path.rename(taken)
            except FileNotFoundError:  # another child was faster
                continue
            values = json.loads(taken.read_text())
            values |= {"do": Do(values["do"]), "ids": tuple(values["ids"])}
            yield taken, ControlCommand(**values)

    def done(self, taken: Path) -> None:
        taken.unlink(missing_ok=True)

    def put_back(self, taken: Path) -> None:
        taken.rename(taken.with_name(taken.name.replace(_TAKEN, _WAITS)))
