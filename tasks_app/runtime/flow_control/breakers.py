"""Circuit breakers: scanners release what they hold, and code declares what handlers depend on."""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from tasks_app.domain.flow_control.circuit_breaker import Breaker, BreakerMode
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.error_text import brief
from tasks_app.pool.flow_control.circuit_breakers import look
from tasks_app.pool.flow_control.circuit_breakers import override
from tasks_app.pool.flow_control.circuit_breakers import synchronise
from tasks_app.pool.operations.audit import note
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import Registry

log = quiet_logger(__name__)


class Breakers:
    """Of one scanner; any number may look at once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def look(self) -> bool:
        """Do what is due; return whether any held task may go now."""
        with self._database.begin() as connection:
            return any(look(connection).values())


def bring_in_breakers(database: Database, registry: Registry) -> None:
    """Enter what handlers depend on; if the database is away, the next start does so."""
    try:
        with database.begin() as connection:
            enter_breakers(connection, registry)
    except OperationalError as error:
        log.warning("breakers of the code could not be entered now: %s", brief(error))


def enter_breakers(connection: Connection, registry: Registry) -> None:
    declared: defaultdict[Breaker, list[str]] = defaultdict(list)
    for spec in registry:
        if spec.depends_on is not None:
            declared[spec.depends_on].append(spec.name)
    synchronise(connection, declared, registry.names)


def override_breaker(
    connection: Connection, dependency: str, mode: BreakerMode, *, by: str = ""
) -> bool:
    """Open or close a breaker whatever the outcomes are, or leave it to them again.

    It is noted in the audit, in the same transaction. False: there is no such breaker.
    """
    done = override(connection, dependency, mode)
    if done:
        note(connection, "breaker", {"dependency": dependency, "mode": str(mode)}, who=by)
    return done
