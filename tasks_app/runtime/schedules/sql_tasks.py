"""Which tasks in SQL the database can carry out as a worker does; of the others, why not."""

from __future__ import annotations

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import TasksError
from tasks_app.domain.handlers.outages import DEFAULT_RULE
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.handlers.sql_statement import SqlStatement
from tasks_app.domain.tasks.masks import masks_of
from tasks_app.domain.tasks.retry_policy import Exponential, Fixed, Levels
from tasks_app.pool.db_scheduler.statements import SqlTask
from tasks_app.runtime.handlers.registry import Registry

_LEVELS = 64
"""From here on a wait is as long as its cap, or the row's attempts are over."""


def sql_tasks_of(registry: Registry, settings: Settings, *, leave: bool) -> list[SqlTask]:
    """Return what the database carries out; ``leave``: the others are left to workers.

    Raises:
        TasksError: one cannot be carried out by the database; names them, with the reasons.
    """
    unfit = unfit_sql_tasks(registry, settings)
    if unfit and not leave:
        those = "; ".join(f"{name}: {why}" for name, why in unfit.items())
        raise TasksError(
            f"The database cannot carry out {those}. Change them, or leave them to workers by "
            "--leave-unfit."
        )
    return [_task(*each) for each in _declared(registry) if each[0].name not in unfit]


def unfit_sql_tasks(registry: Registry, settings: Settings) -> dict[str, str]:
    """Return the tasks in SQL that are left to workers, each with the reason."""
    return {spec.name: why for spec, _ in _declared(registry) if (why := _why_not(spec, settings))}


def _declared(registry: Registry) -> list[tuple[HandlerSpec, SqlStatement]]:
    specs = sorted(registry, key=lambda spec: spec.name)
    return [(spec, spec.statement) for spec in specs if spec.statement is not None]


def _why_not(spec: HandlerSpec, settings: Settings) -> str | None:
    if spec.timeout is not None or spec.hard_timeout is not None:
        return "it has a timeout, which no function can set for a statement in it"
    if spec.encrypted or settings.encrypted:
        return "values are encrypted, and the database has no key"
    if masks_of(settings.masked_paths).covers(spec.name):
        return "values are masked in texts of errors, which the database does not do"
    if spec.on_error or spec.outage != DEFAULT_RULE or spec.depends_on is not None:
        return "it judges errors by rules in Python"
    return None


def _task(spec: HandlerSpec, statement: SqlStatement) -> SqlTask:
    waits, least, most = _waits(spec)
    return SqlTask(
        spec.name,
        spec.queue,
        statement,
        max_attempts=spec.max_attempts,
        at_most_once=spec.at_most_once,
        waits=waits,
        least=least,
        most=most,
        history=spec.history,
    )


def _waits(spec: HandlerSpec) -> tuple[tuple[float, ...], float, float]:
    match spec.retry:
        case Levels(waits=waits, jitter=jitter):
            return tuple(w.total_seconds() for w in waits), 1, 1 + jitter / 100
        case Fixed(every=every, jitter=jitter):
            return (every.total_seconds(),), 1, 1 + jitter / 100
        case Exponential(base=base, factor=factor, cap=cap):
            longest = cap.total_seconds()
            each = (base.total_seconds() * factor**n for n in range(_LEVELS))
            return tuple(min(wait, longest) for wait in each), 0, 1
        case _:
            pass
    raise TypeError(f"{spec.name}: {type(spec.retry).__name__} is no policy of ours")
