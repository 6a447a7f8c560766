"""What a running stack tells other processes: ``stack.json``, private, there while it runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tasks_app.embedded.errors import EmbeddedError
from tasks_app.embedded.home import DEFAULT_FOLDER, locate
from tasks_app.embedded.lock import is_held
from tasks_app.embedded.memory import write_private
from tasks_app.embedded.started import Started

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
class State:
    """Who runs the stack, and how it came up. ``supervised``: ``down`` may end the owner."""

    owner: int
    supervised: bool
    urls: Urls
    started: tuple[Started, ...]


def read_urls(folder: Path | str = DEFAULT_FOLDER) -> Urls | None:
    """Return the URLs of the stack that runs in ``folder``, or None if none does."""
    state = read_state(folder)
    return None if state is None else state.urls


def read_state(folder: Path | str = DEFAULT_FOLDER) -> State | None:
    """Return what the owner wrote, or None when there is no live owner or it is not ready.

    The lock decides who lives, not a process id, which somebody else may have by now.
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
    return State(facts["owner"], facts["supervised"], Urls(**facts["urls"]), started)


def write_state(folder: Path, state: State) -> None:
    """Publish the state; only the holder of the lock may."""
    write_private(folder / FILE, json.dumps(asdict(state), indent=2) + "\n")


def remove_state(folder: Path) -> None:
    """Take the state back."""
    (folder / FILE).unlink(missing_ok=True)
