"""Circuit breakers and load gates: declared, opened and closed, and the counts that decide it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from tasks_app.domain.flow_control.circuit_breaker import Breaker, BreakerMode, BreakerState
from tasks_app.domain.handlers.outcomes import DependencyDown, Outcome, Reaction
from tasks_app.domain.handlers.settlement import is_outage
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.error_text import brief, quiet_logger
from tasks_app.pool.flow_control.circuit_breakers import (
    advance_due,
    failures_left,
    held_names,
    override,
    report,
    synchronise,
)
from tasks_app.pool.flow_control.queue_settings import update_load_gates
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
            return any(advance_due(connection).values())


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


class LoadGates:
    """Of one scanner; any number may look at once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def update(self) -> None:
        """Compare what runs and waits with what each gate allows."""
        with self._database.single() as connection:
            changed = update_load_gates(connection)
        for queue, why in changed.items():
            log.info(
                "the gate of queue %s is %s", queue, f"shut: others are {why}" if why else "open"
            )


T = TypeVar("T")


class DependencyCounts:
    """Of one child: its threads count, its housekeeper takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])

    def watch(self, spec: HandlerSpec, call: Callable[[], T]) -> T:
        """Call, and count how the call ended."""
        if spec.depends_on is None:
            return call()
        try:
            value = call()
        except BaseException as error:
            if speaks_of_dependency(spec, error):
                named = error.dependency if isinstance(error, DependencyDown) else ""
                self.add(named or spec.depends_on.dependency, 0, 1)
            raise
        self.add(spec.depends_on.dependency, 1, 0)
        return value

    def add(self, dependency: str, good: int, bad: int) -> None:
        with self._lock:
            counts = self._counts[dependency]
            counts[0] += good
            counts[1] += bad

    def failed_more_often_than(self, numbers: Mapping[str, float]) -> bool:
        """Tell whether more calls failed, of any dependency, than its number; 0 if it has none."""
        if not self._counts:
            return False
        with self._lock:
            return any(bad > numbers.get(name, 0) for name, (_, bad) in self._counts.items())

    def take(self) -> dict[str, tuple[int, int]]:
        """Return good and bad calls of each dependency, and start again at zero."""
        if not self._counts:
            return {}
        with self._lock:
            taken = {name: (good, bad) for name, (good, bad) in self._counts.items()}
            self._counts.clear()
        return taken


def speaks_of_dependency(spec: HandlerSpec, error: BaseException) -> bool:
    """Tell whether the error says that the dependency failed.

    If a handler declares errors of its dependency, only these do; else any exception that is no
    outcome.
    """
    if is_outage(spec, error):
        return True
    declares = Reaction.OUTAGE in spec.on_error.values()
    return not declares and isinstance(error, Exception) and not isinstance(error, Outcome)


EVERY_S = 1.0
SHARE = 16
"""Of the failures that are missing until a breaker opens: so many fewer wait for their second. So a
storm of failures that opens nothing becomes no storm of writes."""


class DependencyReport:
    """Reports what a child's calls met: its housekeeper once a second, a run that failed at once.

    The housekeeper only looks at an empty dict where nothing is depended on.
    """

    def __init__(
        self,
        database: Database,
        dependencies: DependencyCounts,
        take_back: Callable[[Collection[str]], object] = lambda _: None,
    ) -> None:
        """``take_back`` is given the handlers whose breaker is open when their calls fail here."""
        self._database = database
        self._dependencies = dependencies
        self._take_back = take_back
        self._mutex = threading.Lock()
        self._tell_at = 0.0
        self._may_wait: dict[str, float] = {}
        """How many failures of each may wait for their second, as far as is known."""

    def tell(self) -> None:
        """Report what was counted, once a second.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: it was not written, and is counted still.
        """
        if time.monotonic() >= self._tell_at:
            with self._mutex:
                self._tell()

    def tell_failures(self) -> None:
        """Report before this thread makes another call, if that may open a breaker.

        Failures that others report meanwhile are waited for. If the database does not answer, the
        housekeeper repeats it.
        """
        with self._mutex, suppress(SQLAlchemyError):
            if self._dependencies.failed_more_often_than(self._may_wait):
                self._tell()

    def _tell(self) -> None:
        counts = self._dependencies.take()
        if not counts:
            return
        self._tell_at = time.monotonic() + EVERY_S
        for dependency in sorted(counts):
            good, bad = counts.pop(dependency)
            held: Collection[str] = ()
            left = 0.0
            try:
                with self._database.begin() as connection:
                    step = report(connection, dependency, good, bad)
                    if bad:
                        held = held_names(connection, dependency)
                        left = failures_left(connection, dependency)
            except SQLAlchemyError:
                for name, each in {dependency: (good, bad), **counts}.items():
                    self._dependencies.add(name, *each)
                raise
            self._may_wait[dependency] = left / SHARE
            if step is not None and step.state is BreakerState.OPEN:
                log.warning("breaker %s opens: %s", dependency, step.reason)
            if held:
                self._take_back(held)
