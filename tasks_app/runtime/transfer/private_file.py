"""A file that only its owner reads, and that is there when it is whole."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from tasks_app.domain.errors import InvalidSelectionError

PART = ".part"


@contextmanager
def written_privately(path: Path) -> Iterator[TextIO]:
    """Yield a file to write; if the block raises, nothing is at ``path``.

    Raises:
        InvalidSelectionError: there is a file, somebody else writes it, or it cannot be written.
    """
    part = path.with_name(path.name + PART)
    try:
        with os.fdopen(_begun(path, part), "w", encoding="utf-8") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.link(part, path)  # fails if somebody made it meanwhile
            finally:
                with suppress(FileNotFoundError):
                    part.unlink()
    except FileExistsError:
        raise _there(path) from None
    except OSError as error:
        raise InvalidSelectionError(
            f"{path} cannot be written: {error.strerror}. Choose another folder."
        ) from None


def _begun(path: Path, part: Path) -> int:
    """Return an empty file that is this process's alone while it is open.

    What an export that was killed has left is written anew; its lock ended with its process.
    """
    while True:
        if path.exists():
            raise _there(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(part, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(descriptor, 0o600)
            if os.fstat(descriptor).st_nlink:  # else its writer has just ended, and removed it
                os.ftruncate(descriptor, 0)
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise InvalidSelectionError(
                f"{path} is being written by another process. Wait for it, or choose another name."
            ) from None
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _there(path: Path) -> InvalidSelectionError:
    return InvalidSelectionError(f"{path} is there already. Choose another name, or remove it.")
