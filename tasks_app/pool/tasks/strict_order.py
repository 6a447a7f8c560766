"""Strict order: producers of one order_key take turns, so that its ids rise as its commits follow.

Otherwise the ids rise in the order of the inserts: a transaction that inserts first and commits
last adds a task in front of such as may have run already.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from tasks_app.domain.tasks.records import TaskRow
from tasks_app.pool.connection.steps import Statement
from tasks_app.pool.tables import SCHEMA

_SEED = 7_246_101 + crc32((SCHEMA or "").encode())
_TURN = """
    SELECT pg_advisory_xact_lock(k.hash) FROM (
        SELECT DISTINCT hashtextextended(k.order_key, %(seed)s) AS hash
        FROM unnest(CAST(%(order_keys)s AS text[])) AS k(order_key) ORDER BY 1) AS k
"""


def in_turn(rows: Sequence[TaskRow]) -> Statement:
    """Wait for others that insert tasks of these keys, until they commit; before ids are taken.

    Locks of the transaction, not rows: a claim waits for no producer. All keys of a call are locked
    in one order; who makes several calls in a transaction should do so in one order, too.
    """
    return Statement(_TURN, {"seed": _SEED, "order_keys": list({row.order_key for row in rows})})
