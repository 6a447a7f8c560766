"""Load gates: queues that run only while others do not, or while a function of the user says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import HandlerError
from tasks_app.domain.queues import check_load_gate
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.pool.connection.sessions import read_only_transaction
from tasks_app.pool.flow_control.queue_settings import load_gates_in_use, update_load_gates
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import load_handlers

log = quiet_logger(__name__)
LoadGate: TypeAlias = Callable[[Connection], Any]
G = TypeVar("G", bound=LoadGate)
LOAD_GATES: dict[str, LoadGate] = {}  # of ``@load_gate``, by name
LONGEST = timedelta(seconds=1)  # that a statement of a gate may take


def load_gate(name: str) -> Callable[[G], G]:
    """Declare a function that says when queues may run whose ``only_while`` is this name.

    The process that scans calls it about once a second while a queue uses it, with a connection of
    a read-only transaction whose statements end after a second. If it returns something false, or
    raises, those queues start nothing; what runs goes on.

    >>> @load_gate("business_is_idle")
    ... def business_is_idle(connection):
    ...     return connection.scalar(text(
    ...         "SELECT count(*) < 20 FROM pg_stat_activity WHERE state = 'active'"))

    Raises:
        InvalidTaskError: not a name.
        HandlerError: another function has that name.
    """
    check_load_gate(name)

    def declare(function: G) -> G:
        known = LOAD_GATES.setdefault(name, function)
        if (known.__module__, known.__qualname__) != (function.__module__, function.__qualname__):
            raise HandlerError(
                f"The load gate {name} is {known.__module__}.{known.__qualname__} already. "
                f"Give {function.__module__}.{function.__qualname__} another name."
            )
        LOAD_GATES[name] = function
        return function

    return declare


class LoadGates:
    """Those of the process that scans."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._modules = settings.modules
        self._database = database
        self._problems: dict[str, str] = {}  # that were logged, by name

    def switch(self) -> None:
        with self._database.single() as connection:
            names = load_gates_in_use(connection)
        open_gates = [name for name in names if self._is_open(name)]
        with self._database.single() as connection:
            changed = update_load_gates(connection, open_gates)
        for queue, why in changed.items():
            reasons = {None: "open", "load": "shut: its load gate says no"}
            log.info(
                "the gate of queue %s is %s", queue, reasons.get(why, f"shut: others are {why}")
            )

    def _is_open(self, name: str) -> bool:
        try:
            if name not in LOAD_GATES:
                load_handlers(self._modules)  # beat has not done so
            function = LOAD_GATES.get(name)
            if function is None:
                self._warn(name, "no module of TASKS_APP_IMPORTS declares it")
                return False
            with read_only_transaction(self._database.engine, LONGEST) as connection:
                answer = bool(function(connection))
        except Exception as error:
            self._warn(name, f"it raised {first_line(error)}")
            return False
        self._problems.pop(name, None)
        return answer

    def _warn(self, name: str, problem: str) -> None:
        if self._problems.get(name) != problem:
            self._problems[name] = problem
            log.warning("load gate %s: its queues start nothing: %s", name, problem)
