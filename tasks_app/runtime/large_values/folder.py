"""A folder as an object store, on a disk that all processes share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from uuid import uuid4

PART = ".part"


class FolderStore:
    """Each value is a file; it is there when all of it is on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            _sync(self._folder)
        part = path.with_name(f"{key}-{uuid4().hex}{PART}")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o660)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            part.replace(path)
        except BaseException:  # a disk that is full does not become fuller by each try
            part.unlink(missing_ok=True)
            raise
        _sync(path.parent)

    def get(self, key: str) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            self._folder.stat()  # a disk that is not mounted has lost nothing
            return None

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def keys(self, before: datetime) -> Iterator[str]:
        """Yield the names of old files; what a killed process had begun is removed in passing."""
        until = before.timestamp()
        for path in self._folder.glob("??/*"):
            try:
                if path.stat().st_mtime >= until:
                    continue
            except FileNotFoundError:
                continue
            if path.suffix == PART:
                path.unlink(missing_ok=True)
            else:
                yield path.name

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / key


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
