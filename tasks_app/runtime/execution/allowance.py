"""How long one task may run: by its own word, else its handler's, else the settings'."""

from __future__ import annotations

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.records import ClaimedTask
from tasks_app.runtime.execution.time_limits import can_limit

log = quiet_logger(__name__)


class Allowance:
    """The limits of one child's tasks; ``watched``: a parent kills what runs past the hard one."""

    def __init__(self, settings: Settings, *, watched: bool) -> None:
        self._timeout = settings.timeout
        self._hard_timeout = settings.hard_timeout
        self._watched = watched
        self._warned: set[str] = set()

    def timeout_s(self, task: ClaimedTask, spec: HandlerSpec) -> float | None:
        """Return when ``timeout`` is raised in the handler; None: never."""
        if task.timeout_ms is not None:
            return task.timeout_ms / 1000
        return self.limit_s(spec)

    def limit_s(self, spec: HandlerSpec) -> float | None:
        """Return the same for tasks that bring no limit of their own."""
        limit = spec.timeout or self._timeout
        return None if limit is None else limit.total_seconds()

    def hard_timeout_s(self, task: ClaimedTask, spec: HandlerSpec) -> float:
        """Return when the process is killed; there is always a limit."""
        if task.hard_timeout_ms is not None:
            return task.hard_timeout_ms / 1000
        return self.hard_limit_s(spec)

    def hard_limit_s(self, spec: HandlerSpec) -> float:
        """Return the same for tasks that bring no limit of their own."""
        return (spec.hard_timeout or self._hard_timeout).total_seconds()

    def warn_of_lame(self, task: ClaimedTask, spec: HandlerSpec) -> None:
        """Say once per name that a task's own limit does nothing here.

        Handlers with limits that a pool cannot enforce do not even let it start.
        """
        if task.timeout_ms is None and task.hard_timeout_ms is None:
            return
        lame = [
            *["timeout"] * (task.timeout_ms is not None and not spec.is_async and not can_limit()),
            *["hard_timeout"] * (task.hard_timeout_ms is not None and not self._watched),
        ]
        if lame and task.name not in self._warned:
            self._warned.add(task.name)
            log.warning(
                "task %s (%s) has a %s of its own, which nothing can enforce here; use prefork",
                task.task_id,
                task.name,
                " and a ".join(lame),
            )
