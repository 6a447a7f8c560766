"""Circuit breakers: declared, opened and closed, and the counts that decide it."""

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
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.pool.flow_control import circuit_breakers as rows
from tasks_app.pool.operations.audit import note
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import Registry

log = quiet_logger(__name__)
T = TypeVar("T")
EVERY_S = 1.0
# So many fewer failures than a breaker lacks to open wait for the next report: a storm of failures
# that opens nothing then causes no storm of writes.
SHARE = 16


def advance_breakers(database: Database) -> bool:
    """Move breakers on that are due; return whether any held task may go now."""
    with database.begin() as connection:
        return any(rows.advance_due(connection).values())


def bring_in_breakers(database: Database, registry: Registry) -> None:
    """Enter what handlers depend on; if the database is away, the next start does so."""
    try:
        with database.begin() as connection:
            enter_breakers(connection, registry)
    except OperationalError as error:
        log.warning("breakers of the code could not be entered now: %s", first_line(error))


def enter_breakers(connection: Connection, registry: Registry) -> None:
    declared: defaultdict[Breaker, list[str]] = defaultdict(list)
    for spec in registry:
        if spec.depends_on is not None:
            declared[spec.depends_on].append(spec.name)
    rows.synchronise(connection, declared, registry.names)


def override_breaker(
    connection: Connection, dependency: str, mode: BreakerMode, *, by: str = ""
) -> bool:
    """Open or close a breaker, or leave it to outcomes again; False: there is none."""
    done = rows.override(connection, dependency, mode)
    if done:
        note(connection, "breaker", {"dependency": dependency, "mode": str(mode)}, who=by)
    return done


class DependencyCounts:
    """Of one child: its threads count, its housekeeper takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])

    def watch(self, spec: HandlerSpec, call: Callable[[], T]) -> T:
        if spec.depends_on is None:
            return call()
        try:
            value = call()
        except BaseException as error:
            if is_dependency_failure(spec, error):
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
        """Whether more calls of any dependency failed than its number; 0 if it has none."""
        if not self._counts:
            return False
        with self._lock:
            return any(bad > numbers.get(name, 0) for name, (_, bad) in self._counts.items())

    def drain(self) -> dict[str, tuple[int, int]]:
        """Return good and bad calls of each dependency, and start again at zero."""
        if not self._counts:
            return {}
        with self._lock:
            taken = {name: (good, bad) for name, (good, bad) in self._counts.items()}
            self._counts.clear()
        return taken


def is_dependency_failure(spec: HandlerSpec, error: BaseException) -> bool:
    """Whether it is an error that the handler declares as such, or without any no outcome."""
    if is_outage(spec, error):
        return True
    declares = Reaction.OUTAGE in spec.on_error.values()
    return not declares and isinstance(error, Exception) and not isinstance(error, Outcome)


class DependencyReport:
    """Reports how a child's calls ended: the housekeeper once a second, a failed run at once.

    The housekeeper only reads an empty dict where no handler depends on anything. ``take_back`` is
    called with the handlers whose breaker is open when their calls fail here.
    """

    def __init__(
        self,
        database: Database,
        dependencies: DependencyCounts,
        take_back: Callable[[Collection[str]], object] = lambda _: None,
    ) -> None:
        self._database = database
        self._dependencies = dependencies
        self._take_back = take_back
        self._mutex = threading.Lock()
        self._report_at = 0.0
        self._may_wait: dict[str, float] = {}  # how many failures may wait for the next report

    def tell(self) -> None:
        """Report what was counted, once a second. After an SQLAlchemyError it is counted still."""
        if time.monotonic() >= self._report_at:
            with self._mutex:
                self._report()

    def report_failures(self) -> None:
        """Report before this thread makes another call, if that may open a breaker.

        It waits while another thread reports. If the database does not answer, the housekeeper
        repeats it.
        """
        with self._mutex, suppress(SQLAlchemyError):
            if self._dependencies.failed_more_often_than(self._may_wait):
                self._report()

    def _report(self) -> None:
        counts = self._dependencies.drain()
        if not counts:
            return
        self._report_at = time.monotonic() + EVERY_S
        for dependency in sorted(counts):
            good, bad = counts.pop(dependency)
            held: Collection[str] = ()
            left = 0.0
            try:
                with self._database.begin() as connection:
                    step = rows.report_calls(connection, dependency, good, bad)
                    if bad:
                        held = rows.held_names(connection, dependency)
                        left = rows.failures_left(connection, dependency)
            except SQLAlchemyError:
                for name, each in {dependency: (good, bad), **counts}.items():
                    self._dependencies.add(name, *each)
                raise
            self._may_wait[dependency] = left / SHARE
            if step is not None and step.state is BreakerState.OPEN:
                log.warning("breaker %s opens: %s", dependency, step.reason)
            if held:
                self._take_back(held)
