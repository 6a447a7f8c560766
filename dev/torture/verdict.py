"""What must be true when everything is quiet again, counted in the database."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

_OWN = "biz_key IS NULL"
"""Of producers and schedules. Tasks of batch jobs have a key, and are judged by their rows."""
_FACTS = text(f"""
    SELECT
        (SELECT count(*) FROM task_pending) AS unfinished,
        (SELECT string_agg(DISTINCT concat_ws(' ', p.name, p.state, p.queue, p.parked_kind), ', ')
            FROM task_pending p) AS which,
        (SELECT count(*) FROM task_completed WHERE state = 'SUCCEEDED' AND {_OWN})
            AS succeeded,
        (SELECT count(*) FROM task_completed WHERE state = 'CANCELLED' AND {_OWN})
            AS cancelled,
        (SELECT count(*) FROM task_completed WHERE state NOT IN ('SUCCEEDED', 'CANCELLED')
            AND {_OWN}) AS otherwise,
        (SELECT count(*) FROM task_error WHERE {_OWN}) AS failed,
        (SELECT count(*) FROM task_all) AS rows,
        (SELECT count(DISTINCT id) FROM task_all) AS ids,
        (SELECT count(*) FROM effect) AS effects,
        (SELECT count(DISTINCT task_id) FROM effect) AS tasks_with_effect,
        (SELECT count(*) FROM effect e WHERE NOT EXISTS
            (SELECT FROM task_completed c WHERE c.id = e.task_id AND c.attempt = e.attempt))
            AS stray_effects,
        (SELECT coalesce(sum(crashes), 0) FROM task_completed) AS crashes,
        (SELECT max(attempt) FROM task_completed) AS most_attempts
""")


@dataclass(frozen=True, slots=True)
class Check:
    """One sentence that is true or not, with its figure."""

    sentence: str
    holds: bool
    figure: object


def judge(connection: Connection, committed: int, *, cancels: bool = False) -> list[Check]:
    """Compare committed tasks with their effects; ``cancels``: an operator cancelled some."""
    f = connection.execute(_FACTS).one()
    terminal = f.succeeded + f.cancelled + f.otherwise + f.failed
    wanted = committed - f.cancelled * cancels
    return [
        Check("every committed task is in a terminal pool", terminal == committed, terminal),
        Check("none is left in the pending pool", f.unfinished == 0, f.which or 0),
        Check("no id lies in two pools", f.ids == f.rows, f.ids),
        Check("all that nobody cancelled succeeded", f.succeeded == wanted, f.succeeded),
        Check("each of them has its effect", f.tasks_with_effect == wanted, f.tasks_with_effect),
        Check("no task has two effects", f.effects == f.tasks_with_effect, f.effects),
        Check("each effect is of the attempt that settled", f.stray_effects == 0, f.stray_effects),
    ]


def remarks(connection: Connection) -> list[tuple[str, object]]:
    """Return figures that show how hard the run was."""
    f = connection.execute(_FACTS).one()
    return [
        ("times on board of a vanished worker", f.crashes),
        ("most claims of one task", f.most_attempts),
    ]
