"""Whom the servers run as: PostgreSQL refuses root."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tasks_app.embedded.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Iterable

# `pgserver` is the user that the wheel's own Python layer makes; we make none.
CANDIDATES = ("pgserver", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """A user without rights, for servers that root starts."""

    name: str
    uid: int
    gid: int

    @classmethod
    def of(cls, entry: pwd.struct_passwd) -> Self:
        """Take what we need from the password database."""
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid)

    def may_enter(self, path: Path) -> bool:
        """Say whether the mode bits let this user reach what is inside ``path``."""
        return all(self._may_cross(step.stat()) for step in (path, *path.parents))

    def _may_cross(self, status: os.stat_result) -> bool:
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IXUSR)
        if status.st_gid == self.gid:
            return bool(status.st_mode & stat.S_IXGRP)
        return bool(status.st_mode & stat.S_IXOTH)

    def own(self, path: Path) -> None:
        """Give ``path`` and all in it to this user."""
        for item in (path, *path.rglob("*")):
            if item.lstat().st_uid != self.uid:
                os.chown(item, self.uid, self.gid, follow_symlinks=False)


def server_account(data_folders: Iterable[Path]) -> Account | None:
    """Choose the user for the servers, or None to run them as whoever we are.

    Data that exists already keeps its owner, so that root and its owner can take turns.
    """
    if os.geteuid() != 0:
        return None
    owners = [folder.stat().st_uid for folder in data_folders if folder.exists()]
    entries = [_by_uid(uid) for uid in owners if uid != 0] + [_by_name(n) for n in CANDIDATES]
    for entry in entries:
        if entry is not None:
            return Account.of(entry)
    raise EmbeddedError(
        "PostgreSQL refuses to run as root and there is no user 'nobody'. "
        "Run this as a normal user, or create one: useradd --system pgserver."
    )


def _by_uid(uid: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


def _by_name(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None
