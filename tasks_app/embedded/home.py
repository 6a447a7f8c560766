"""The folder of all files, and another one for data if the servers' user cannot enter it."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tasks_app.embedded.account import Account, server_account
from tasks_app.embedded.errors import EmbeddedError

DEFAULT_FOLDER = Path(".tasks_app")
PRIVATE = 0o700
PASSABLE = 0o711  # other users may pass through, not list
KEPT_TEMPORARY = "/var/tmp"  # noqa: S108  it survives a reboot; we check who owns what is there

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Home:
    """``folder`` is what the caller named, ``root`` holds the data.

    They differ only for root, with a folder that the servers' user cannot enter. ``mark`` is in the
    command line of each of our servers, and of no other process.
    """

    folder: Path
    root: Path
    account: Account | None
    mark: str

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def data(self, name: str) -> Path:
        """Return a server's data folder, which exists and belongs to its user from now on."""
        path = self.root / name
        path.mkdir(mode=PRIVATE, exist_ok=True)
        if self.account is not None:
            self.account.own(path)
        return path


def locate(folder: Path | str) -> Path:
    """Return the absolute path of a folder that need not exist."""
    return Path(folder).expanduser().resolve()


def mark_of(folder: Path) -> str:
    """Derive the mark from the path, so that a copy of the folder has another one."""
    return "tasks_app-" + hashlib.sha256(os.fsencode(locate(folder))).hexdigest()[:12]


def open_home(folder: Path | str) -> Home:
    """Create what is missing of the folder and decide where its data goes."""
    path = locate(folder)
    try:
        _create(path)
        account = server_account((path / "pg", path / "valkey"))
        if account is None or account.may_enter(path):
            return Home(path, path, account, mark_of(path))
        return Home(path, _beside(path, account), account, mark_of(path))
    except OSError as error:
        raise EmbeddedError(
            f"The folder {path} cannot be used: {error.strerror}. "
            "Name another folder, or make this one yours."
        ) from error


def _create(path: Path) -> None:
    if not path.exists():
        path.mkdir(parents=True)
        path.chmod(PASSABLE if os.geteuid() == 0 else PRIVATE)
    (path / "log").mkdir(mode=PRIVATE, exist_ok=True)


def _beside(path: Path, account: Account) -> Path:
    for place in (KEPT_TEMPORARY, tempfile.gettempdir()):
        parent = Path(place).resolve()
        if not parent.is_dir() or not account.may_enter(parent):
            continue
        root = parent / mark_of(path)
        root.mkdir(mode=PASSABLE, exist_ok=True)
        if root.is_symlink() or root.stat().st_uid != os.geteuid():
            continue  # another user may have made it as a trap
        root.chmod(PASSABLE)
        logger.warning("User %s cannot enter %s: data is in %s", account.name, path, root)
        return root
    raise EmbeddedError(
        f"User {account.name}, who is to run the servers for root, cannot enter {path}. "
        "Name a folder that every user may enter."
    )
