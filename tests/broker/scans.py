"""When scans were done, as the database wrote it down."""

from __future__ import annotations

import itertools
import threading
from datetime import datetime
from typing import Self

from sqlalchemy import Engine, text

DONE = text("SELECT done_at, statement_timestamp() FROM task_lease WHERE name = 'scan'")


class Scans:
    """Watches beside a test; each scan that it sees is later than the one before."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.seen: list[datetime] = []
        self.now: datetime | None = None

    def longest_gap_s(self) -> float:
        """The longest span without a scan, the one that has not ended yet included."""
        assert self.now is not None
        instants = [*self.seen, self.now]
        gaps = [(b - a).total_seconds() for a, b in itertools.pairwise(instants)]
        return max(gaps, default=0.0)

    def gap_around(self, moment: datetime) -> float:
        """The span between the last scan before that moment and the first one after it."""
        before = max(instant for instant in self.seen if instant <= moment)
        after = min(instant for instant in self.seen if instant > moment)
        return (after - before).total_seconds()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _watch(self) -> None:
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while not self._ends.wait(0.02):
                row = connection.execute(DONE).one_or_none()
                if row is not None and row[0] is not None:
                    self.now = row[1]
                    if not self.seen or row[0] > self.seen[-1]:
                        self.seen.append(row[0])
