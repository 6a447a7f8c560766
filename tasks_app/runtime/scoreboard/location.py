"""Where a worker's slot file lies: a folder per parent process, private to the user.

A worker that was killed cannot clean up, so each new one removes the folders of the dead.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from tasks_app.domain.errors import ConfigurationError
from tasks_app.runtime.scoreboard.process_birth import born_at, own_birth
from tasks_app.runtime.scoreboard.scoreboard import Scoreboard

SLOTS_VARIABLE = "TASKS_APP_SLOTS"
"""Where a parent tells its children the path of their slot file."""
_PRIVATE = 0o700


def new_slot_path() -> Path:
    base = _base()
    _remove_the_dead(base)
    folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-{own_birth()}-", dir=base))
    return folder / "slots"


def remove_slots(path: Path) -> None:
    shutil.rmtree(path.parent, ignore_errors=True)


def slot_file() -> Scoreboard:
    """Open the slot file that the parent made, or one of our own if there is no parent."""
    given = os.environ.get(SLOTS_VARIABLE)
    return Scoreboard(Path(given) if given else new_slot_path())


def parent_of(slots: Scoreboard) -> int | None:
    """Return the pid of the parent that watches this process; None: nobody does."""
    pid, _, _ = slots.path.parent.name.partition("-")
    return int(pid) if pid.isdigit() and int(pid) != os.getpid() else None


def temporary_folder() -> str:
    """Return a folder that can be written to.

    Raises:
        ConfigurationError: there is none: the file system is read-only, or full.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        raise ConfigurationError(
            "No folder for temporary files can be written to, and the processes of a worker share "
            "one. Mount a volume at /tmp, or set TMPDIR to a folder that this user may write to."
        ) from None


def _base() -> Path:
    base = Path(temporary_folder()) / f"tasks_app-slots-{os.getuid()}"
    with suppress(FileExistsError):
        base.mkdir(_PRIVATE)
    if base.is_symlink() or base.stat().st_uid != os.getuid():  # somebody else was there first
        return Path(tempfile.mkdtemp(prefix="tasks_app-slots-"))
    return base


def _remove_the_dead(base: Path) -> None:
    for folder in base.iterdir():
        pid, _, rest = folder.name.partition("-")
        born = rest.rpartition("-")[0]
        with suppress(ValueError):
            if born_at(int(pid)) != float(born):
                shutil.rmtree(folder, ignore_errors=True)
