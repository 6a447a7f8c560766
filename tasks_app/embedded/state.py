"""What a running stack tells other processes, in ``stack.json``, readable by its owner only."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tasks_app.embedded.errors import EmbeddedError
from tasks_app.embedded.home import DEFAULT_FOLDER, locate
from tasks_app.embedded.lock import is_held
from tasks_app.embedded.memory import write_private

if TYPE_CHECKING:
    from pathlib import Path

FILE = "stack.json"
LOCK = "stack.lock"


@dataclass(frozen=True, slots=True)
class Urls:
    """Where the database and the broker are, passwords included."""

    database: str
    broker: str


@dataclass(frozen=True, slots=True)
class Started:
    """A server that came up; printed, it is the line for the terminal."""

    name: str
    version: str
    seconds: float
    port: int
    pid: int
    data: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} ready in {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class StackState:
    """Who runs the stack, and how it came up. ``supervised``: ``down`` may end the owner."""

    owner: int
    supervised: bool
    urls: Urls
    started: tuple[Started, ...]


def read_urls(folder: Path | str = DEFAULT_FOLDER) -> Urls | None:
    """Return the URLs of the stack that runs in ``folder``, or None if none does."""
    state = read_state(folder)
    return None if state is None else state.urls


def read_state(folder: Path | str = DEFAULT_FOLDER) -> StackState | None:
    """Return what the owner wrote; None: no live owner, or it is not ready.

    The lock decides whether it lives: another process may have its id by now.
    """
    path = locate(folder)
    try:
        if not is_held(path / LOCK):
            return None
        facts = json.loads((path / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EmbeddedError(
            f"The state of {path} cannot be read: {error.strerror}. "
            "Ask as the user who started the servers."
        ) from error
    started = tuple(Started(**item) for item in facts["started"])
    return StackState(facts["owner"], facts["supervised"], Urls(**facts["urls"]), started)


def write_state(folder: Path, state: StackState) -> None:
    """Publish the state; the caller holds the lock."""
    write_private(folder / FILE, json.dumps(asdict(state), indent=2) + "\n")


def remove_state(folder: Path) -> None:
    (folder / FILE).unlink(missing_ok=True)
