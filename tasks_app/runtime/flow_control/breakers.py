"""Breakers: whoever scans lets go what may go, and code says what its handlers depend on."""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from tasks_app.domain.flow_control.circuit_breaker import Breaker, Mode
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.flow_control.breaker import look, override, synchronise
from tasks_app.pool.operations.audit import note
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import Registry

log = quiet_logger(__name__)


class Breakers:
    """One scanner's; any number may look at once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def look(self) -> bool:
        """Do what is due; tell whether any task may go now."""
        with self._database.begin() as connection:
            return any(look(connection).values())


def bring_in_breakers(database: Database, registry: Registry) -> None:
    """Enter what handlers depend on; where the database is away just now, the next start does."""
    declared: defaultdict[Breaker, list[str]] = defaultdict(list)
    for spec in registry:
        if spec.depends_on is not None:
            declared[spec.depends_on].append(spec.name)
    try:
        with database.begin() as connection:
            synchronise(connection, declared, registry.names)
    except OperationalError as error:
        log.warning("breakers of the code are not brought in now: %s", type(error).__name__)


def override_breaker(connection: Connection, dependency: str, mode: Mode, *, by: str = "") -> bool:
    """Open or close a breaker whatever the outcomes are, or leave it to them again.

    It is noted in the audit in the same transaction. False: there is none.
    """
    done = override(connection, dependency, mode)
    if done:
        note(connection, "breaker", {"dependency": dependency, "mode": str(mode)}, who=by)
    return done
