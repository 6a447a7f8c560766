"""Clear gates: a condition in SQL under which a task surely passes, so that nobody need decide.

It never says more than ``domain/flow_control/admission.py`` would let pass. What it leaves out is
judged there, one by one.
"""

from __future__ import annotations

from tasks_app.domain.flow_control.limits import ANY
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import ERROR, LIMIT, NOW, PENDING, PLACE_UNLIMITED

_IS_PREFIX = f"right(l.target, 1) = '{ANY}'"
LIMIT_OF_KEY = f"""CROSS JOIN LATERAL (
        SELECT l.most, l.burst FROM (
            SELECT l.most, l.burst, 0 AS place FROM {LIMIT} l
            WHERE l.kind = 'key' AND l.target = k.key AND NOT {_IS_PREFIX}
            UNION ALL
            SELECT l.most, l.burst, -length(l.target)
            FROM (SELECT * FROM {LIMIT} l WHERE l.kind = 'key' AND {_IS_PREFIX}) AS l
            WHERE starts_with(k.key, left(l.target, -1))) AS l
        ORDER BY l.place <> 0, l.place LIMIT 1) AS l"""
"""Joins to the limit keys ``k`` the limit of each; those without one drop out."""

_OF_IDS = f"{PENDING} t WHERE t.id = ANY(CAST(:ids AS bigint[])) AND t.limit_key IS NOT NULL"
_NOT_CLEAR = f"""
        SELECT k.key FROM (
            SELECT n.key, sum(n.number) AS number FROM (
                SELECT t.limit_key AS key, count(*) AS number FROM {_OF_IDS} GROUP BY t.limit_key
                UNION ALL
                SELECT r.limit_key, count(*) FROM {PENDING} r
                WHERE r.state = '{State.RUNNING}' AND r.limit_key IS NOT NULL
                  AND r.limit_key = ANY(ARRAY(SELECT DISTINCT t.limit_key FROM {_OF_IDS}))
                GROUP BY r.limit_key) AS n
            GROUP BY n.key) AS k
        {LIMIT_OF_KEY}
        WHERE l.burst IS NOT NULL OR k.number > l.most"""
# OFFSET keeps the planner from a join with the whole pool.
CLEAR = f"""(p.parked IS NULL OR p.scan_at <= {NOW}) AND p.more_limit_keys IS NULL
    AND {PLACE_UNLIMITED}
    AND (p.order_key IS NULL
        OR NOT EXISTS (
            SELECT FROM {PENDING} o
            WHERE o.order_key = p.order_key AND o.id <> p.id OFFSET 0)
        AND NOT EXISTS (
            SELECT FROM {ERROR} o
            WHERE o.order_key = p.order_key AND o.order_skips IS NOT TRUE OFFSET 0))
    AND (p.limit_key IS NULL
        OR p.limit_key <> ALL (ARRAY({_NOT_CLEAR}))
        AND NOT EXISTS (
            SELECT FROM {PENDING} m
            WHERE m.state = '{State.RUNNING}' AND m.more_limit_keys IS NOT NULL))"""
"""The condition on the row ``p`` that its own gates let it pass, whatever others of ``:ids`` pass.

Of its order key it is the only one. Under its limit key there is a place for all of ``:ids`` that
have it.
"""
