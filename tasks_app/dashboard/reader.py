"""What the routes of one application share: above all one reader, so equal pages cost one read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine

from tasks_app.domain.config.settings import Settings
from tasks_app.monitor.metrics import MetricsReader
from tasks_app.runtime.db.database import Database, reading_engine

Model = TypeVar("Model")
MOST_KEPT = 200
STALE = 3  # times its age limit that something may be shown while it is read again


@dataclass(frozen=True, slots=True)
class AppState:
    """Reads go through ``reader``; ``database`` is for the actions of operators."""

    settings: Settings
    reader: PageReader
    database: Database
    metrics: MetricsReader  # shared by all scrapers


class PageReader:
    """Reads in transactions that cannot write, and keeps what was read for a second or two."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine: Engine | None = None
        self._lock = threading.Lock()
        self._kept: dict[Hashable, _Kept] = {}
        self._busy: dict[Hashable, threading.Lock] = {}

    @property
    def engine(self) -> Engine:
        """Made on first use: a server may fork after it has made the application."""
        with self._lock:
            if self._engine is None:
                self._engine = reading_engine(self._url)
            return self._engine

    def read(
        self,
        key: Hashable,
        read: Callable[[Connection], Model],
        keep_s: float = 1.0,
        pause: float = 0.0,
    ) -> Model:
        """Return what ``read`` returned at most ``keep_s`` ago under this key.

        It is kept ``pause`` times as long as it took, if that is longer.
        """

        def make() -> Model:
            with self.engine.connect() as connection:
                return read(connection)

        return self.kept(key, make, keep_s, pause)

    def kept(
        self, key: Hashable, make: Callable[[], Model], keep_s: float, pause: float = 0.0
    ) -> Model:
        """Return what ``make`` made; of several callers at once, one makes it."""
        with self._lock:
            if len(self._kept) > MOST_KEPT:
                self._kept.clear()
                self._busy.clear()
            turn = self._busy.setdefault(key, threading.Lock())
        with turn:
            kept = self._kept.get(key, _Kept())
            if time.monotonic() - kept.at > max(keep_s, pause * kept.took):
                kept = self._kept[key] = _made(make)
            return kept.model  # type: ignore[no-any-return]

    def kept_or_stale(
        self, key: Hashable, make: Callable[[], Model], keep_s: float, pause: float = 0.0
    ) -> Model:
        """Return what ``make`` made; a thread renews what is a little old, so no viewer waits.

        What is STALE times too old is made at once.
        """
        kept = self._kept.get(key, _Kept())
        age, keep_s = time.monotonic() - kept.at, max(keep_s, pause * kept.took)
        if age > STALE * keep_s:
            return self.kept(key, make, keep_s)
        if age > keep_s:
            self._kept[key] = kept._replace(at=time.monotonic())  # others leave it to this thread
            threading.Thread(target=self._renew, args=(key, make), daemon=True).start()
        return kept.model  # type: ignore[no-any-return]

    def _renew(self, key: Hashable, make: Callable[[], Any]) -> None:
        with suppress(Exception):  # the next viewer makes it at once, and sees the error
            self._kept[key] = _made(make)
            return
        self._kept.pop(key, None)

    def forget(self) -> None:
        """Forget all: after a change the operator wants to see it."""
        with self._lock:
            self._kept.clear()

    def close(self) -> None:
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None


class _Kept(NamedTuple):
    at: float = float("-inf")
    took: float = 0.0  # seconds
    model: Any = None


def _made(make: Callable[[], Any]) -> _Kept:
    began = time.monotonic()
    model = make()
    now = time.monotonic()
    return _Kept(now, now - began, model)
