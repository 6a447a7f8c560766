"""A file that only its owner reads, and that is there when it is whole."""

from __future__ import annotations

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
        InvalidSelectionError: there is a file, or none can be written.
    """
    if path.exists():
        raise InvalidSelectionError(f"{path} is there already. Choose another name, or remove it.")
    part = path.with_name(path.name + PART)
    try:
        with suppress(FileNotFoundError):  # of an export that was killed
            part.unlink()
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InvalidSelectionError(
            f"{path} cannot be written: {error.strerror}. Choose another folder."
        ) from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        os.link(part, path)  # fails if somebody made it meanwhile
    finally:
        part.unlink()
