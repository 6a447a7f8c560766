"""Large values of one process: which stay outside of their rows, and in which store."""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from sqlalchemy import Connection

from tasks_app.domain.encryption import TOKEN_BEGIN as ENCRYPTED
from tasks_app.domain.errors import ConfigurationError, InvalidTaskError, TasksError
from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.large_values.store import (
    PAYLOAD,
    RESULT,
    LargePayload,
    LargeValueLostError,
    LargeValueStore,
    Reference,
    reference_in,
)
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.payload import encode
from tasks_app.domain.tasks.payload_checks import ToJson
from tasks_app.domain.tasks.records import TaskRow
from tasks_app.pool.tasks.large_values import StoredValue, read, write_value

if TYPE_CHECKING:
    from tasks_app.domain.config.settings import Settings


log = quiet_logger(__name__)
DATABASE = "database"
FOLDER = "folder:"
WARN_EVERY_S = 30.0
Begin = Callable[[], AbstractContextManager[Connection]]  # opens our own transaction, and commits


class LargeStoreError(TasksError):
    """The object store did not answer, or this process has none."""


class LargeValues:
    """One process's; all its threads use it. False: large values are refused."""

    def __init__(self, settings: Settings) -> None:
        self._place = settings.large_values
        most = settings.large_limit if self._place else 0
        self.row_limit: int = settings.payload_limit
        """In bytes, of a payload that stands in its row."""
        self.payload_limit: int = max(self.row_limit, most)
        """In bytes, of a new task's payload; above the other limit it stays outside of the row."""
        self.result_row_limit: int = settings.result_limit
        """In bytes, of a result that stands in its row."""
        self.result_limit: int = max(settings.result_limit, most)
        self._warn_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._place)

    @property
    def is_outside(self) -> bool:
        """Whether new values go to an object store."""
        return self._place not in {"", DATABASE}

    def has_large_payload(self, text: str) -> bool:
        """Whether a payload must stay outside of its row."""
        return bool(self) and _is_longer(text, self.row_limit)

    def has_large_result(self, text: str) -> bool:
        return bool(self) and _is_longer(text, self.result_row_limit)

    def encoded(self, result: Any, to_json: ToJson | None) -> str:
        """Return a result as JSON text; Fail: it cannot be stored."""
        try:
            return encode(result, RESULT, self.result_limit, to_json)
        except InvalidTaskError as error:
            raise Fail(f"The handler's result cannot be stored: {error}") from None

    async def off_loop(
        self, work: Callable[[Sequence[TaskRow]], Sequence[TaskRow]], rows: Sequence[TaskRow]
    ) -> Sequence[TaskRow]:
        """Do work that may put values; an object store does not block the event loop."""
        return await asyncio.to_thread(work, rows) if self.is_outside else work(rows)

    def outside(self, row: TaskRow, *, encrypted: bool) -> TaskRow:
        """Return the row with a reference to its payload, which an object store has already."""
        return row._replace(payload=self._put(row.payload, encrypted=encrypted))

    def keep_result(self, begin: Begin, task_id: int, result: str) -> str:
        """Store the result of a running task; return the reference for its row.

        This comes before the settle, in its own transaction: the fence decides about the settle
        alone, and maintenance removes a value without a row.
        Raises LargeStoreError: the object store did not take it.
        """
        value = self._put(result, encrypted=result.startswith(ENCRYPTED))
        with begin() as connection:
            write_value(connection, value, task_id, RESULT)
        return str(value)

    def payload(self, begin: Begin, task_id: int, text: str) -> str:
        """Return the payload that a row's text stands for; Fail: it is lost, or LargeStoreError."""
        reference = reference_in(text)
        if reference is None:
            return text
        try:
            return self.load(begin, task_id, reference, PAYLOAD)
        except (LargeStoreError, ConfigurationError) as error:
            now = time.monotonic()
            if now >= self._warn_at:  # each task is tried again soon, and fails alike
                self._warn_at = now + WARN_EVERY_S
                log.warning("task %s, and others like it, cannot start: %s", task_id, error)
            raise LargeStoreError(str(error)) from None
        except LargeValueLostError as error:
            raise Fail(str(error)) from None

    def load(self, begin: Begin, task_id: int, reference: Reference, kind: str) -> str:
        """Return a value as JSON text, perhaps encrypted; LargeValueLostError: there is none."""
        with begin() as connection:
            stored = read(connection, task_id, reference)
        return self.text_of(stored, reference, kind)

    def text_of(self, stored: StoredValue | None, reference: Reference, kind: str) -> str:
        """Return the database's value, or the object store's; the same errors."""
        if stored is None:
            raise LargeValueLostError(kind)
        if stored.content is not None:
            return stored.content
        store = self.store
        try:
            data = store.get(reference.key)
        except Exception as error:
            raise LargeStoreError(f"The {kind} cannot be loaded: {brief(error)}.") from None
        if data is None:
            raise LargeValueLostError(kind)
        return data.decode()

    def remove(self, ids: Iterable[UUID]) -> None:
        """Remove values from the object store; LargeStoreError: it does not answer."""
        store = self.store
        try:
            for each in ids:
                store.delete(each.hex)
        except Exception as error:
            raise LargeStoreError(
                f"Large values cannot be removed: {brief(error)}. {_CHECK_STORE}"
            ) from error

    @cached_property
    def store(self) -> LargeValueStore:
        """The object store; LargeStoreError: none is configured, or it cannot be opened."""
        if not self.is_outside:
            raise LargeStoreError(
                "A value is in an object store, and none is configured here. "
                "Set TASKS_APP_LARGE_VALUES as where it was created."
            )
        return store_at(self._place)

    def _put(self, text: str, *, encrypted: bool) -> LargePayload:
        value = LargePayload.of(text, encrypted=encrypted)
        if self.is_outside:
            store = self.store
            try:
                store.put(value.reference.key, text.encode())
            except Exception as error:
                raise LargeStoreError(
                    f"A large value cannot be stored: {brief(error)}. {_CHECK_STORE}"
                ) from None  # its text may hold the value
            value.content = None
        return value


_CHECK_STORE = "Check the store that TASKS_APP_LARGE_VALUES names, and try again."


@cache
def large_values() -> LargeValues:
    from tasks_app.domain.config.settings import load_settings  # noqa: PLC0415  slow to import

    return LargeValues(load_settings())


def _is_longer(text: str, limit: int) -> bool:
    """Compare in bytes; most texts are so short that their characters need not be counted."""
    return len(text) > limit or (len(text) * 4 > limit and len(text.encode()) > limit)


def store_at(place: str) -> LargeValueStore:
    """Return the store of ``folder:/path`` or ``module:function``."""
    if place.startswith(FOLDER):
        return FolderStore(Path(place.removeprefix(FOLDER)))
    module, _, name = place.partition(":")
    try:
        made: Callable[[], LargeValueStore] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise ConfigurationError(
            f"TASKS_APP_LARGE_VALUES is wrong: {place} isn't a function. "
            "Write database, folder:/path or module:function."
        ) from None
    try:
        return made()
    except Exception as error:
        raise LargeStoreError(
            f"The store of large values cannot be opened: {brief(error)}. "
            "Check the function that TASKS_APP_LARGE_VALUES names, and try again."
        ) from None


def brief(error: Exception) -> str:
    """Return the kind of an error, and the system's text; another text may hold anything."""
    text = error.strerror if isinstance(error, OSError) and error.errno else None
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


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
        except BaseException:  # a full disk must not become fuller by each try
            part.unlink(missing_ok=True)
            raise
        _sync(path.parent)

    def get(self, key: str) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            self._folder.stat()  # raises if the disk is not mounted: then the value is not lost
            return None

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def keys(self, before: datetime) -> Iterator[str]:
        """Yield the names of old files; parts that a killed process left are removed."""
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
