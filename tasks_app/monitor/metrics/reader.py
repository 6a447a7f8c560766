"""One reader for all who scrape: within a short time they get the same text."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Protocol

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.monitor import metric_catalogue
from tasks_app.monitor.metrics import PARTS
from tasks_app.monitor.metrics import Collect
from tasks_app.monitor.metrics.exposition import Sample, render
from tasks_app.pool.connection.read_only import looking
from tasks_app.runtime.db.errors import sqlstate

KEEP_S = 2.0
LONGEST = timedelta(seconds=2)
"""Of one statement; a part that takes longer is left out, and says so."""
logger = logging.getLogger(__name__)


class HasEngine(Protocol):
    """Where the connections come from."""

    @property
    def engine(self) -> Engine: ...


class MetricsReader:
    """Reads at most once in ``keep_s``; whoever comes while it reads waits for that answer."""

    def __init__(self, database: HasEngine, settings: Settings, *, keep_s: float = KEEP_S) -> None:
        self._database = database
        self._settings = settings
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._text = ""
        self._read_at: float | None = None

    def read(self) -> str:
        """Return the metrics as text; of a database that is away, that it is away."""
        with self._lock:
            if self._read_at is None or time.monotonic() - self._read_at >= self._keep_s:
                self._text = render(self._samples())
                self._read_at = time.monotonic()
            return self._text

    def _samples(self) -> Iterator[Sample]:
        whole = True
        for name, collect in PARTS.items():
            started = time.monotonic()
            found = self._part(name, collect)
            whole = whole and found is not None
            yield from found or ()
            yield Sample(metric_catalogue.READ_UP, found is not None, (name,))
            yield Sample(metric_catalogue.READ_SECONDS, time.monotonic() - started, (name,))
        yield Sample(metric_catalogue.UP, whole)

    def _part(self, name: str, collect: Collect) -> list[Sample] | None:
        """Read it in a transaction of its own: one that fails leaves the others whole."""
        try:
            with looking(self._database.engine, LONGEST) as connection:
                return list(collect(connection, self._settings))
        except SQLAlchemyError as error:
            logger.warning(
                "metrics: %s could not be read: %s %s", name, type(error).__name__, sqlstate(error)
            )
            return None
