"""tasks_app as a user runs it: Celery worker (2 children) and beat, or ``tasks-app work``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dev.benchmarks.environments import Ours
from dev.benchmarks.systems.system import System

ENVIRONMENT = Ours()


def celery(children: int, *more: str) -> tuple[list[str], ...]:
    """Return the commands of a worker with this many children, and of beat."""
    program = ENVIRONMENT.program("celery", "-A", "tasks_app")
    worker = [*program, "worker", "-c", str(children), *more]
    return worker, [*program, "beat", "--pidfile="]


CELERY = celery(2)
WORK = (ENVIRONMENT.program("tasks-app", "work", "-c", "1"),) * 2
_SEQUENCE = "SELECT setval(pg_get_serial_sequence('task_pending', 'id'), {rows})"
FILLS = {
    "finished": (
        (
            "INSERT INTO task_completed (id, name, payload, state, attempt, owner, started_at)"
            """ SELECT g, 'noop', '{{"i": 0}}', 'SUCCEEDED', 1, 'somebody', now()"""
            " FROM generate_series(1, {rows}) AS g"
        ),
        _SEQUENCE,
    ),
    "future": (
        (
            "INSERT INTO task_pending (id, name, payload, due_at, scan_at)"
            """ SELECT g, 'noop', '{{"i": 0}}', due, due FROM generate_series(1, {rows}) AS g,"""
            " LATERAL (SELECT now() + interval '1 day' + g * interval '1 s' AS due) AS d"
        ),
        _SEQUENCE,
    ),
}


def setting(name: str) -> Callable[[], str | None]:
    """Return a function that says whether the settings know this one."""

    def missing() -> str | None:
        from tasks_app import Settings

        known = name in Settings.model_fields
        return None if known else f"tasks_app has no setting TASKS_APP_{name.upper()} yet"

    return missing


def _ours(
    name: str,
    title: str,
    services: tuple[list[str], ...] = CELERY,
    *,
    parties: int = 1,
    variables: Mapping[str, str] | None = None,
    keeps_rows: bool = True,
    missing: Callable[[], str | None] = lambda: None,
) -> System:
    return System(
        name=name,
        title=f"tasks_app, {title}",
        environment=ENVIRONMENT,
        services=services,
        parties=parties,
        unfinished="task_pending WHERE id > {after}",
        finished="SELECT state, count(*), count(DISTINCT id) FROM task_completed"
        " WHERE attempt = 1 AND id > {after} GROUP BY 1"
        " UNION ALL SELECT state, count(*), count(DISTINCT id) FROM task_error GROUP BY 1",
        keeps_rows=keeps_rows,
        first_claim="SELECT extract(epoch FROM min(started_at)) FROM task_completed"
        " WHERE id > {after}",
        fills=FILLS,
        variables={"TASKS_APP_IMPORTS": "dev.benchmarks.peers.ours.handlers", **(variables or {})},
        missing=missing,
    )


_NO_HISTORY = {"TASKS_APP_HISTORY": "none"}
OURS = (
    _ours("ours-celery", "Celery prefork 2 and beat"),
    _ours("ours-work", "2 x tasks-app work", WORK, parties=2),
    _ours(
        "ours-celery-no-history",
        "Celery prefork 2 and beat, history none",
        variables=_NO_HISTORY,
        keeps_rows=False,
    ),
    _ours(
        "ours-work-no-history",
        "2 x tasks-app work, history none",
        WORK,
        parties=2,
        variables=_NO_HISTORY,
        keeps_rows=False,
    ),
    _ours(
        "ours-notify",
        "2 x tasks-app work, woken by NOTIFY",
        WORK,
        parties=2,
        variables={"TASKS_APP_BROKER_URL": ""},
    ),
    _ours(
        "ours-poll",
        "2 x tasks-app work that look for work once a second",
        WORK,
        parties=2,
        variables={"TASKS_APP_BROKER_URL": "", "TASKS_APP_HINTS": "off"},
    ),
    _ours(
        "ours-celery-threads",
        "Celery prefork 2 with 8 threads each, and beat",
        variables={"TASKS_APP_THREADS": "8"},
        missing=setting("threads"),
    ),
    _ours(
        "ours-celery-async",
        "Celery prefork 2, 5,000 async handlers at once in each, and beat",
        variables={"TASKS_APP_ASYNC_CONCURRENCY": "5000"},
        missing=setting("async_concurrency"),
    ),
    _ours(
        "ours-celery-no-hints",
        "Celery prefork 2 and beat, no hints",
        variables={"TASKS_APP_HINTS": "off"},
    ),
    *(
        _ours(f"ours-celery-{children}", f"Celery prefork {children} and beat", celery(children))
        for children in (16, 40, 64)
    ),
    _ours(
        "ours-celery-queues",
        "Celery prefork 2 for the queues a and b, and beat",
        celery(2, "-Q", "a,b"),
    ),
)
