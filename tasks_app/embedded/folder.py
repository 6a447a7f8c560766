"""The files of a folder that say which process owns its servers, and where they are."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DEFAULT_FOLDER = Path(".tasks_app")
LOCK, ALIVE, OWNER = "lock", "alive", "owner.json"
END_PATIENCE_S = 12.0  # the watchers of a killed owner's servers end by then


class EmbeddedError(RuntimeError):
    """An embedded server cannot do this; the message says why, and what to do."""


class AlreadyOwnedError(EmbeddedError):
    """Another process owns the folder, and with it the servers in it."""


@dataclass(frozen=True, slots=True)
class Urls:
    database: str
    broker: str


@dataclass(frozen=True, slots=True)
class Started:
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
    """The owner's process, and its servers. ``supervised``: ``down`` may end the owner."""

    owner: int
    supervised: bool
    urls: Urls
    started: tuple[Started, ...]


@contextmanager
def opened(folder: Path) -> Iterator[None]:
    """Create what is missing of a folder; an OSError in the block says that it cannot be used.

    Root's servers, which run as others, may pass through it.
    """
    try:
        if not folder.exists():
            folder.mkdir(parents=True)
            folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
        (folder / "log").mkdir(mode=0o700, exist_ok=True)
        yield
    except OSError as error:
        raise EmbeddedError(
            f"The folder {folder} cannot be used: {error}. Use another, or change its owner."
        ) from error


class FolderLock:
    """Lets one process own a folder, and records which.

    The owner alone has one ``flock``, and shares another with the watchers of its servers until
    these have ended. Two objects of the same folder exclude each other even in one process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._exclusive = self.descriptor = -1

    def acquire(self) -> None:
        """Take the lock, or raise AlreadyOwnedError; wait for the servers of a killed owner."""
        descriptor = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + END_PATIENCE_S
        while not _lock(descriptor, fcntl.LOCK_EX):
            if _is_owned(self._folder) or time.monotonic() > deadline:
                os.close(descriptor)
                raise AlreadyOwnedError(
                    f"Process {_facts(self._folder).get('owner')} already runs the servers in "
                    f"{self._folder}. Stop it with `tasks-app down`, or name another folder."
                )
            time.sleep(0.02)
        self.descriptor = descriptor
        write_private(self._folder / OWNER, {"owner": os.getpid()})
        self._exclusive = os.open(self._folder / ALIVE, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._exclusive, fcntl.LOCK_EX)  # readers have it for a moment

    def publish(self, state: StackState) -> None:
        write_private(self._folder / OWNER, asdict(state))

    @property
    def is_current(self) -> bool:
        """Whether others would find the lock that we hold: the folder may have been removed."""
        try:
            found = (self._folder / LOCK).stat()
        except OSError:
            return False
        return os.path.samestat(found, os.fstat(self.descriptor))

    def release(self) -> None:
        """Release it; the files stay, because removing them would race with the next owner."""
        for descriptor in (self._exclusive, self.descriptor):
            if descriptor >= 0:
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # for copies in forked children too
                os.close(descriptor)
        self._exclusive = self.descriptor = -1


def absolute(folder: Path | str) -> Path:
    return Path(folder).expanduser().resolve()


def read_state(folder: Path | str = DEFAULT_FOLDER) -> StackState | None:
    """Return what the owner published; None: there is no owner, or it is not ready."""
    path = absolute(folder)
    try:
        facts = _facts(path) if _is_owned(path) else {}
    except OSError as error:
        raise EmbeddedError(
            f"The state of {path} cannot be read: {error.strerror}. "
            "Run this as the user who started the servers."
        ) from error
    if "urls" not in facts:
        return None
    started = tuple(Started(**each) for each in facts["started"])
    return StackState(facts["owner"], facts["supervised"], Urls(**facts["urls"]), started)


def read_urls(folder: Path | str = DEFAULT_FOLDER) -> Urls | None:
    state = read_state(folder)
    return None if state is None else state.urls


def write_private(path: Path, facts: dict[str, Any]) -> None:
    """Replace a file atomically by one that only its owner can read."""
    draft = path.with_suffix(".new")
    draft.touch(0o600)
    draft.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    if os.geteuid() == 0:  # the folder's owner may use it next
        around = path.parent.stat()
        os.chown(draft, around.st_uid, around.st_gid)
    draft.replace(path)


def _facts(folder: Path) -> dict[str, Any]:
    with suppress(FileNotFoundError):
        facts: dict[str, Any] = json.loads((folder / OWNER).read_bytes())
        return facts
    return {}


def _is_owned(folder: Path) -> bool:
    try:
        with (folder / ALIVE).open() as file:
            return not _lock(file.fileno(), fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def _lock(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True
