"""How the calls of handlers that depend on something ended: counted, and reported in sums.

Once a second, and failures at once while a budget lasts: so a breaker opens a few calls after its
threshold, and a storm of failures becomes no storm of writes.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.flow_control.circuit_breaker import BreakerState
from tasks_app.domain.handlers.outcomes import DependencyDown, Outcome, Reaction
from tasks_app.domain.handlers.settlement import is_outage
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.flow_control.breaker import report
from tasks_app.pool.flow_control.breaker_waiting_list import held_names
from tasks_app.runtime.db.database import Database

T = TypeVar("T")


class DependencyCounts:
    """Of one child: its threads count, its housekeeper takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        self.failed = False
        """Whether a failure was counted since :meth:`take`."""
        self.tell_soon: Callable[[], object] = lambda: None
        """Called at the first of them."""

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
            first = bad > 0 and not self.failed
            self.failed |= first
        if first:
            self.tell_soon()

    def take(self) -> dict[str, tuple[int, int]]:
        """Return good and bad calls of each dependency, and start again at zero."""
        if not self._counts:
            return {}
        with self._lock:
            taken = {name: (good, bad) for name, (good, bad) in self._counts.items()}
            self._counts.clear()
            self.failed = False
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


log = quiet_logger(__name__)


EVERY_S = 1.0
MOST_AT_ONCE = 10
"""Reports of failures that do not wait for their second; one more is allowed each second."""


class DependencyReport:
    """A duty of the housekeeper; it only looks at an empty dict where nothing is depended on."""

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
        self._tell_at = 0.0
        self._allowed = float(MOST_AT_ONCE)
        self._allowed_at = time.monotonic()

    def tell(self) -> None:
        """Report what was counted.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: it was not written, and is counted still.
        """
        now = time.monotonic()
        if now < self._tell_at and not (self._dependencies.failed and self._may_hurry(now)):
            return
        counts = self._dependencies.take()
        if not counts:
            return
        self._tell_at = now + EVERY_S
        for dependency in sorted(counts):
            good, bad = counts.pop(dependency)
            try:
                with self._database.begin() as connection:
                    step = report(connection, dependency, good, bad)
                    held = held_names(connection, dependency) if bad else ()
            except SQLAlchemyError:
                for name, each in {dependency: (good, bad), **counts}.items():
                    self._dependencies.add(name, *each)
                raise
            if step is not None and step.state is BreakerState.OPEN:
                log.warning("breaker %s opens: %s", dependency, step.reason)
            if held:
                self._take_back(held)

    def _may_hurry(self, now: float) -> bool:
        refilled = self._allowed + (now - self._allowed_at) / EVERY_S
        self._allowed, self._allowed_at = min(refilled, MOST_AT_ONCE), now
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True
