"""The user that the servers run as: PostgreSQL refuses root."""

from __future__ import annotations

import os
import pwd
import stat
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tasks_app.embedded.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Iterable

# `pgserver` is the user that the wheel's own Python layer creates; we create none.
CANDIDATES = ("pgserver", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """A user without rights, for servers that root starts."""

    name: str
    uid: int
    gid: int

    @classmethod
    def of(cls, entry: pwd.struct_passwd) -> Self:
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
        """Make this user the owner of ``path`` and all in it."""
        for item in (path, *path.rglob("*")):
            if item.lstat().st_uid != self.uid:
                os.chown(item, self.uid, self.gid, follow_symlinks=False)


def server_account(data_folders: Iterable[Path]) -> Account | None:
    """Return the user for the servers; None: this process's own user.

    Existing data keeps its owner, so that root and its owner can use it in turn.
    """
    if os.geteuid() != 0:
        return None
    owners = [folder.stat().st_uid for folder in data_folders if folder.exists()]
    searches = [partial(pwd.getpwuid, uid) for uid in owners if uid != 0]
    for search in (*searches, *(partial(pwd.getpwnam, name) for name in CANDIDATES)):
        with suppress(KeyError):
            return Account.of(search())
    raise EmbeddedError(
        "PostgreSQL refuses to run as root and there is no user 'nobody'. "
        "Run this as a normal user, or create one: useradd --system pgserver."
    )
