"""What root needs: PostgreSQL refuses to run as root, and others may not enter root's home."""

from __future__ import annotations

import logging
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

from tasks_app.embedded.process import User, surroundings

KEPT_TEMPORARY = "/var/tmp"  # noqa: S108  it survives a reboot; mkdtemp makes what is ours there

logger = logging.getLogger(__name__)


def server_user(folder: Path) -> User | None:
    """Return whom the servers of a folder run as; None: as we do.

    Root's servers run as the folder's owner, so that both can use it in turn, or as ``nobody``.
    """
    if os.geteuid() != 0:
        return None
    owner, nobody = folder.stat(), pwd.getpwnam("nobody")
    return (owner.st_uid, owner.st_gid) if owner.st_uid else (nobody.pw_uid, nobody.pw_gid)


def data_folder(path: Path, user: User | None) -> Path:
    """Return a server's data folder, which exists and belongs to its user.

    Where that user cannot enter the folder around it, ``path`` is a link to one that it can.
    """
    if not path.exists():
        path.unlink(missing_ok=True)  # a link to what is gone
        if _may_enter(path.parent, user):
            path.mkdir(mode=0o700)
        else:
            path.symlink_to(tempfile.mkdtemp(prefix="tasks_app-", dir=KEPT_TEMPORARY))
            logger.warning("Its user cannot enter %s: data is in %s", path.parent, path.resolve())
    give(path.resolve(), user)
    return path.resolve()


def in_reach(programs: Path, data: Path, user: User | None) -> Path:
    """Return a folder of programs, or its copy in the data folder if its user cannot enter it.

    That is so with a virtual environment below root's home, which stays as closed as it is.
    """
    if _may_enter(programs, user):
        return programs
    copy = data / f"programs-{programs.stat().st_mtime_ns}"  # an upgrade makes a new one
    target = copy / programs.parent.name / programs.name
    if not copy.exists():
        draft = data / "programs"
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(programs, draft / target.relative_to(copy))
        # PostgreSQL's programs look for their libraries there, relative to themselves.
        libraries = programs.parent.with_name(f"{programs.parent.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, draft / libraries.name)
        for item in (draft, *draft.rglob("*")):
            give(item, user)
        draft.rename(copy)
    return target


def give(path: Path, user: User | None) -> None:
    """Let what we made be its user's."""
    if user is not None:
        os.chown(path, *user, follow_symlinks=False)


def _may_enter(folder: Path, user: User | None) -> bool:
    """Let the kernel say it, which looks at all folders above, and at more than mode bits."""
    asked = ["/bin/test", "-x", str(folder)]
    return user is None or subprocess.run(asked, check=False, **surroundings(user)).returncode == 0  # noqa: S603
