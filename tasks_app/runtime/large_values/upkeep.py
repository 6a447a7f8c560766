"""Upkeep: values that nothing needs any more are removed, some at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from uuid import UUID

from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.tasks.large_values import FIRST, LOOKED_AT, remove_lost, unknown
from tasks_app.runtime.large_values.stores import LargeStoreError
from tasks_app.runtime.large_values import Begin
from tasks_app.runtime.large_values import LargeValues

log = quiet_logger(__name__)

GRACE = timedelta(days=1)
"""What an object store has is written before its transaction commits: none may take longer."""


class LargeValueUpkeep:
    """One process's; any number may run."""

    def __init__(self, values: LargeValues, begin: Begin, *, most: int = LOOKED_AT) -> None:
        self._values = values
        self._begin = begin
        self._most = most
        self._after: UUID = FIRST
        self._thread: threading.Thread | None = None

    def run(self, for_s: float = float("inf")) -> bool:
        """Remove what tasks have left in the database; return whether all was looked at.

        That needs no time of grace: see the room of the statements.
        """
        ends = time.monotonic() + for_s
        while True:
            with self._begin() as connection:
                after, gone = remove_lost(connection, self._after, most=self._most)
            if gone:
                log.info("removed %s large values that no task needs", gone)
            self._after = after or FIRST
            if after is None:
                return True
            if time.monotonic() >= ends:
                return False

    def start_outside(self) -> None:
        """Look through the object store beside the caller: it may be slow, or hang."""
        if not self._values.is_outside:
            return
        if self._thread is not None and self._thread.is_alive():
            log.warning("the object store of large values is still looked through since last time")
            return
        self._thread = threading.Thread(
            target=self._try_outside, name="tasks_app large values", daemon=True
        )
        self._thread.start()

    def _try_outside(self) -> None:
        try:
            self.run_outside()
        except Exception as error:  # the text of a store's own may hold anything
            said = error if isinstance(error, LargeStoreError) else type(error).__name__
            log.warning("the object store was not looked through, again in an hour: %s", said)

    def run_outside(self) -> None:
        """Remove what the object store has, and no committed row knows."""
        store = self._values.store
        with self._begin() as connection:
            before = instant(connection) - GRACE
        for ids in _parts(iter(store.keys(before)), self._most):
            with self._begin() as connection:
                lost = unknown(connection, ids)
            self._values.remove(lost)


def _parts(keys: Iterator[str], most: int) -> Iterator[list[UUID]]:
    while some := list(islice(keys, most)):
        yield [found for key in some if (found := _id(key)) is not None]


def _id(key: str) -> UUID | None:
    """Return the value's id; None: the file is not ours."""
    try:
        return UUID(hex=key)
    except ValueError:
        return None
