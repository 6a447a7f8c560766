"""Late commits: outcomes with what their handlers asked to write, many of them in one round trip.

Each is a transaction of its own. None waits long: what would hold up those behind it fails here, and
is committed alone then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from tasks_app.domain.tasks.run import Settlement
from tasks_app.pool.runs.settle_success import last_word
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.transaction import as_sqlalchemy_raises, give_back
from tasks_app.runtime.handler_db.driver_internals import LATE_WRITES, SHARED_SESSIONS
from tasks_app.runtime.handler_db.end_pipeline import RunEnd
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tasks_app.runtime.handler_db.late_writes import Write
from tasks_app.runtime.handler_db.lending import driver_of, taken

MOST = 32
"""How many go in one round trip: more would save nothing, and hold up whoever waits for them."""


class LateCommits:
    """Of one child. Its callers take turns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def takes(self, settlement: Settlement) -> bool:
        """Whether it can be committed beside others, as far as is known before it is tried.

        A member of a group is counted by a statement whose answer is needed, and a run that is to
        be alone in its process ends so.
        """
        task = settlement.task
        return (
            SHARED_SESSIONS.works
            and LATE_WRITES.works
            and self._database.prepares
            and settlement.sub_status is None
            and not (task is None or task.in_group or task.runs_alone)
        )

    def commit(
        self, settlements: Sequence[Settlement]
    ) -> Iterator[tuple[Sequence[Settlement], Exception | None]]:
        """Commit each under its fence; yield those that did, and why the one behind them did not.

        After an error it goes on behind that one, if the connection lasts.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: there is no connection, and nothing was done.
        """
        left = list(settlements)
        with self._lent() as driver:
            while left:
                group = left[:MOST]
                ends = [RunEnd(last_word(s), [Write(*w) for w in s.writes]) for s in group]
                try:
                    number, error = driver.commit_each(ends)
                except psycopg.Error as lost:  # before anything was sent
                    number, error = 0, lost
                yield group[:number], error and as_known(error)
                if driver.closed:
                    return
                del left[: number + (error is not None)]

    @contextmanager
    def _lent(self) -> Iterator[HandlerConnection]:
        connection = taken(self._database.brief_engine)
        try:
            yield driver_of(connection)
        finally:
            give_back(connection.close, connection.invalidate)


def as_known(error: Exception) -> Exception:
    """Return the error as SQLAlchemy would have raised it, if it is the database's."""
    return as_sqlalchemy_raises(error) if isinstance(error, psycopg.Error) else error
