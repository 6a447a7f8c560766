"""The maintainer: partitions made ahead, and the list of workers kept short."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from sqlalchemy.exc import DBAPIError

from tasks_app.pool import workers
from tasks_app.pool.maintain import add_partition, has_strays, missing_partitions
from tasks_app.runtime.database import Database

log = logging.getLogger(__name__)

FORGET_WORKERS_AFTER = timedelta(hours=1)


class Maintainer:
    """Any number may run; each partition is made in a transaction of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def run_once(self, *, now: datetime | None = None) -> int:
        """Make what is missing; return the number of partitions made.

        A partition that open settles hold up is left to the next tick: there are 14 days for it.
        """
        with self._database.begin() as connection:
            workers.prune(connection, FORGET_WORKERS_AFTER, now=now)
            if has_strays(connection):
                log.error(
                    "task_completed_default holds rows: partitions were missing. "
                    "Run maintenance daily; retention cannot drop those rows by partition."
                )
            missing = missing_partitions(connection, now=now)
        made = 0
        for day in missing:
            try:
                with self._database.begin() as connection:
                    add_partition(connection, day)
                made += 1
            except DBAPIError as error:
                state = getattr(error.orig, "sqlstate", None)
                log.warning("partition of %s not made now (SQLSTATE %s)", day.date(), state)
        return made
