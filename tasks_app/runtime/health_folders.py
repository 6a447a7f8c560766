"""Folders of health files that nobody writes to any more: a worker's start removes them.

A process that was killed cannot, and one that ends in good order does not know of its siblings.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR

from tasks_app.runtime.health_files import ROLES, is_ours, project_folder, read_sign, run_folder

LONG_AGO_S = 3600.0
"""Until then `healthz` says that a process is gone. Living ones write every few seconds."""
_NAME = "[0-9a-f]" * 8
_TAKEN = "taken-"


def remove_abandoned(now: float | None = None) -> None:
    """Remove this user's folders of other projects whose processes have all ended.

    Of two that do so at once one gets the folder. A process that starts in it just now makes it
    anew with its next sign of life.
    """
    base, own = Path(run_folder()), Path(project_folder())
    if now is None:
        now = time.time()  # noqa: TID251  as files are dated
    before = now - LONG_AGO_S
    with suppress(OSError):
        if not is_ours(str(base)):
            return
        for left in base.glob(f"{_TAKEN}*"):  # by one that was killed over it
            shutil.rmtree(left, ignore_errors=True)
        for folder in base.glob(_NAME):
            with suppress(OSError):  # another one was faster
                if folder != own and _is_abandoned(folder, before):
                    _remove(folder)


def _is_abandoned(folder: Path, before: float) -> bool:
    of_it = folder.lstat()
    if not S_ISDIR(of_it.st_mode) or of_it.st_uid != os.getuid() or of_it.st_mtime > before:
        return False
    signs = [read_sign(str(file)) for file in folder.iterdir() if file.name not in ROLES]
    return not any(sign and sign[0] for sign in signs)


def _remove(folder: Path) -> None:
    """Take it before anything in it goes: who writes to it meanwhile makes a new one."""
    taken = folder.with_name(f"{_TAKEN}{os.getpid()}-{folder.name}")
    folder.rename(taken)
    shutil.rmtree(taken, ignore_errors=True)
