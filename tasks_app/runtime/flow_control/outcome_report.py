"""The outcome report: what a child saw of its handlers' dependencies, told once a second."""

from __future__ import annotations

import time

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.flow_control.circuit_breaker import BreakerState
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.flow_control.breaker import report
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.flow_control.dependency_report import DependencyTally

log = quiet_logger(__name__)

EVERY_S = 1.0


class DependencyReport:
    """A duty of the housekeeper; it costs a look at an empty dict where nothing is depended on."""

    def __init__(self, database: Database, tally: DependencyTally) -> None:
        self._database = database
        self._tally = tally
        self._tell_at = 0.0

    def tell(self) -> None:
        """Report what was counted.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: it was not written, and is still to be told.
        """
        if time.monotonic() < self._tell_at:
            return
        counts = self._tally.take()
        if not counts:
            return
        self._tell_at = time.monotonic() + EVERY_S
        for dependency in sorted(counts):
            good, bad = counts.pop(dependency)
            try:
                with self._database.begin() as connection:
                    step = report(connection, dependency, good, bad)
            except SQLAlchemyError:
                for name, each in {dependency: (good, bad), **counts}.items():
                    self._tally.add(name, *each)
                raise
            if step is not None and step.state is BreakerState.OPEN:
                log.warning("breaker %s opens: %s", dependency, step.reason)
