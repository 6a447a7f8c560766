"""Both servers for the length of a ``with``, in a folder that leaves no trace."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tasks_app.embedded.home import PASSABLE, open_home
from tasks_app.embedded.stack import Stack

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def temporary(*, persist: bool = False) -> Iterator[Stack]:
    """Yield a stack that is up, with a new empty database; stop and remove it afterwards.

    A test under root that brings its own ``tmp_path`` would send the data elsewhere,
    because pytest closes that folder to the servers' user; this one is passable.
    """
    folder = Path(tempfile.mkdtemp(prefix="tasks_app-"))
    folder.chmod(PASSABLE)
    root = open_home(folder).root
    try:
        with Stack(folder, persist=persist) as stack:
            yield stack
    finally:
        shutil.rmtree(root, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
