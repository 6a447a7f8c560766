"""The short way through gates: one statement locks those of many tasks, one says who surely passes.

Nearly all tasks with a key of their own pass. To judge each takes nearly as long as to run it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.limits import Gate, GateKind
from tasks_app.domain.flow_control.waiting_reason import WORDS
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.connection.execute import ask, in_psycopgs_words
from tasks_app.pool.connection.steps import Statement
from tasks_app.pool.fragments.conditions import is_free
from tasks_app.pool.fragments.conditions import runs
from tasks_app.pool.fragments.clear_gates import CLEAR, LIMIT_OF_KEY
from tasks_app.pool.fragments.fences import array
from tasks_app.pool.tables import GATE, PENDING, READY, admits_by_id

_ORDER, _KEY = GateKind.ORDER, GateKind.KEY
_PASSING = text(f"""
    SELECT array_agg(p.id) FROM {PENDING} p
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)} AND {READY}
      AND {runs("p.queue")} AND {is_free()} AND {CLEAR}
""")
# Who finds a row waits for whoever has locked it, or inserts it. An update that changes nothing
# locks without a write.
_LOCK = in_psycopgs_words(f"""
    WITH keyed AS MATERIALIZED (
        SELECT p.id, p.priority, p.order_key, p.limit_key FROM {PENDING} p
        WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)}
          AND (p.order_key IS NOT NULL OR p.limit_key IS NOT NULL)),
    locked AS (
        INSERT INTO {GATE} AS t (gate)
        SELECT g.gate FROM (
            SELECT DISTINCT '{WORDS[_ORDER]} ' || k.order_key AS gate FROM keyed k
            WHERE k.order_key IS NOT NULL
            UNION ALL
            SELECT '{WORDS[_KEY]} ' || k.key
            FROM (SELECT DISTINCT k.limit_key AS key FROM keyed k
                  WHERE k.limit_key IS NOT NULL) AS k
            {LIMIT_OF_KEY}) AS g
        ORDER BY g.gate COLLATE "C"
        ON CONFLICT (gate) DO UPDATE SET look_at = t.look_at WHERE false)
    SELECT id, order_key, limit_key FROM keyed ORDER BY priority, id
""")


def passing(connection: Connection, ids: Sequence[int], *, now: datetime | None = None) -> set[int]:
    """Return those of ``ids`` that surely pass now; perhaps more do. Only a read."""
    values = {"ids": array(map(int, ids)), "now": now}
    return set(connection.execute(_PASSING, values).scalar() or ())


def lock_of(connection: Connection, ids: Sequence[int]) -> dict[int, tuple[Gate, ...]]:
    """Lock the gates of the keys of ``ids`` in one order, made where there is none; return them.

    Tasks without keys are left out. Those of the best priority come first.
    """
    values = {"ids": array(map(int, ids))}
    return {
        task_id: _gates(order_key, limit_key)
        for task_id, order_key, limit_key in ask(connection, Statement(_LOCK, values))
    }


def _gates(order_key: str | None, limit_key: str | None) -> tuple[Gate, ...]:
    """By ``tuple`` itself, as claimed tasks are made."""
    gates: tuple[Gate, ...] = ()
    if order_key is not None:
        gates = (tuple.__new__(Gate, (_ORDER, order_key)),)
    if limit_key is not None:
        gates += (tuple.__new__(Gate, (_KEY, limit_key)),)
    return gates
