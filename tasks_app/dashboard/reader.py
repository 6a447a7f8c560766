"""The only reader of a process: all who look at the same page within a moment cost one read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from tasks_app.runtime.db.read_only import reading_engine

Model = TypeVar("Model")
MOST_KEPT = 200


class PageReader:
    """Reads in transactions that cannot write, and keeps what was read for a second or two."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine: Engine | None = None
        self._lock = threading.Lock()
        self._kept: dict[Hashable, tuple[float, Any]] = {}
        self._busy: dict[Hashable, threading.Lock] = {}
        self._renewed: set[Hashable] = set()

    @property
    def engine(self) -> Engine:
        """Made on first use: a server may fork after it has made the application."""
        with self._lock:
            if self._engine is None:
                self._engine = reading_engine(self._url)
            return self._engine

    def read(
        self, key: Hashable, read: Callable[[Connection], Model], keep_s: float = 1.0
    ) -> Model:
        """Return what ``read`` returned at most ``keep_s`` ago under this key."""

        def fresh() -> Model:
            with self.engine.connect() as connection:
                return read(connection)

        return self.kept(key, fresh, keep_s)

    def kept(
        self, key: Hashable, make: Callable[[], Model], keep_s: float, serve_s: float = 0.0
    ) -> Model:
        """Return what ``make`` made; of several who ask at once, one makes it.

        For ``serve_s`` longer the old is still returned, at once, while a thread makes it anew.
        """
        with self._lock:
            if len(self._kept) > MOST_KEPT:
                self._kept.clear()
                self._busy.clear()
            turn = self._busy.setdefault(key, threading.Lock())
        with turn:
            at, model = self._kept.get(key, (float("-inf"), None))
            age = time.monotonic() - at
            if age > keep_s + serve_s:
                model = make()
                self._kept[key] = (time.monotonic(), model)
            elif age > keep_s:
                threading.Thread(target=self._renew, args=(key, make, turn), daemon=True).start()
            return model  # type: ignore[no-any-return]

    def _renew(self, key: Hashable, make: Callable[[], Any], turn: threading.Lock) -> None:
        """An error is told to who asks when the old is too old."""
        with self._lock:
            if key in self._renewed:
                return
            self._renewed.add(key)
        try:
            with suppress(SQLAlchemyError):
                model = make()
                with turn:
                    self._kept[key] = (time.monotonic(), model)
        finally:
            self._renewed.discard(key)

    def forget(self) -> None:
        """Forget all: something was just changed, and who did it wants to see it."""
        with self._lock:
            self._kept.clear()

    def close(self) -> None:
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None
