"""Succeed: the settle of one success in the transaction of its effects: its last word.

The COMMIT travels along with it, so it fails where the fence is lost, and with it the COMMIT.
"""

from __future__ import annotations

import json
from itertools import product
from typing import NamedTuple

import psycopg

from tasks_app.domain.groups import Called
from tasks_app.domain.tasks.run import Fence, Settlement
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.fragments.move_rows import attempts_of
from tasks_app.pool.fragments.transition_log import LOG, lines_of_successes
from tasks_app.pool.tables import CARRIED, COMPLETED, FENCE_LOST, PENDING, admits
from tasks_app.pool.task_groups import LOCKED, count_members, lock_groups

_KEPT = ", ".join(CARRIED)
_NOW = "statement_timestamp()"
_LOST = "TA002"  # the SQLSTATE that ``task_fence_lost`` raises
_SAID = "nullif(coalesce($6, sub_status), '')"
"""The sub-status: the run's last word on it, or else what stood before."""
_OWN = f"{lock_groups(f'SELECT p.batch_id FROM {PENDING} p WHERE p.id = $1')}, "
_COUNT = f", {count_members('gone', succeeds='true', now=_NOW)}"
_CALLED = """(SELECT jsonb_build_array(c.id, c.queue, c.wait_s)::text
        FROM called c WHERE c.wait_s IS NOT NULL)"""
"""As text, since the owner of a connection decides how it reads JSON."""
_LOST_ELSE = f"CASE WHEN gone.id IS NULL THEN {FENCE_LOST}($1) IS NULL ELSE true END"


def _statement(*, keeps: bool = True, counts: bool = False, tried: bool = False, logs: bool) -> str:
    """Return the statement; its row, if it yields one, is for :func:`called_by`.

    Args:
        keeps: the row goes into the history.
        counts: it is the row of a group's member, or may be.
        tried: without a row in the history, attempts before this one leave nothing either.
        logs: with a line in the log of transitions.
    """
    values = ", ".join(_SAID if name == "sub_status" else name for name in CARRIED)
    enter = f"""
    INSERT INTO {COMPLETED} ({_KEPT}, state, result, run_ms, finished_at)
    SELECT {values}, '{State.SUCCEEDED}', $4::jsonb, $5::integer, {_NOW}"""
    return f"""
    WITH {_OWN if counts else ""}gone AS (
        DELETE FROM {PENDING} p
        WHERE p.id = $1 AND {admits(Event.SUCCEED)} AND p.attempt = $2
          AND p.lease_token = $3 AND {LOCKED if counts else "p.batch_id IS NULL"}
        RETURNING {"p.*" if keeps else "p.id, p.attempt, p.owner, p.started_at"}){
        attempts_of("gone") if tried else ""
    }{_COUNT if counts else ""}{lines_of_successes("gone", _NOW) if logs else ""}
    {enter if keeps else "SELECT NULL"}
    FROM (SELECT) AS one LEFT JOIN gone ON true WHERE {_LOST_ELSE}
    {f"RETURNING {_CALLED}" if counts else ""}
"""


_WAYS: dict[str, dict[str, bool]] = {
    "": {},
    ", counts": {"counts": True},
    ", forgets": {"keeps": False},
    ", forgets all": {"keeps": False, "tried": True},
}
_OWN_ROW = f"""
    SELECT FROM {PENDING} p WHERE p.id = $1 AND p.attempt = $2 AND p.lease_token = $3
    FOR NO KEY UPDATE
""".encode()
_TYPES = [20, 23, 2950, 3802, 23, 25]
"""Of task, attempt, token, result, run_ms and sub-status, as pg_type knows them."""


class LastWord(NamedTuple):
    """A statement that ends a transaction, in the words of libpq."""

    name: bytes  # under which it is prepared
    sql: bytes  # its values are ``$1`` and so on
    types: list[int]  # lists, since psycopg 3.2 in C takes nothing else
    values: list[bytes | None]


_WORDS = {
    (way, logs): (
        f"tasks_app succeeds{way}{', logs' * logs}".encode(),
        _statement(**parts, logs=logs).encode(),
    )
    for (way, parts), logs in product(_WAYS.items(), (False, True))
}
"""Names and texts, by what they do and whether they log."""


def _way(settlement: Settlement) -> str:
    """Return by which of the statements this success is written."""
    if settlement.task is None or settlement.task.in_group:
        return ", counts"
    if settlement.is_kept:
        return ""
    return ", forgets all" if settlement.fence.attempt > 1 else ", forgets"


def last_word(settlement: Settlement) -> LastWord:
    """Return what writes one success, waiting for its row and group.

    Its answer is for :func:`called_by`. Without a claim it fails, as :func:`is_fence_lost` knows.
    """
    (task_id, attempt, token), result = settlement.fence, settlement.result
    said = settlement.sub_status
    values = [
        b"%d" % task_id,
        b"%d" % attempt,
        token.hex.encode(),
        None if result is None else result.encode(),
        None if settlement.run_ms is None else b"%d" % settlement.run_ms,
        None if said is None else said.encode(),
    ]
    return LastWord(*_WORDS[_way(settlement), LOG.has_successes], _TYPES, values)


def is_fence_lost(error: psycopg.Error) -> bool:
    """Tell whether a last word failed because the run is not ours any more."""
    return error.sqlstate == _LOST


def called_by(answer: str | bytes | None) -> list[Called]:
    """Return the callback of a group that a last word has inserted, from its row."""
    return [] if answer is None else [Called(*json.loads(answer))]


def own_row(fence: Fence) -> LastWord:
    """Return what locks the row of a run.

    Where a transaction sees what was when it began, a renewal would else update the row behind its
    snapshot, and the settle at its end fail. A locked row is passed by: the lock is its lease.
    """
    values: list[bytes | None] = [
        b"%d" % fence.task_id,
        b"%d" % fence.attempt,
        fence.token.hex.encode(),
    ]
    return LastWord(b"", _OWN_ROW, _TYPES[:3], values)
