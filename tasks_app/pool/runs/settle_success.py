"""The settle of one success as the last statement in the transaction of its effects.

The COMMIT is sent with it: if the fence is lost, the statement fails, and with it the COMMIT.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from operator import itemgetter
from typing import NamedTuple

import psycopg

from tasks_app.domain.groups import StartedTask
from tasks_app.domain.tasks.run import Fence, Settlement
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.fragments.move_rows import WAIT, array, attempts_of, fenced
from tasks_app.pool.fragments.transition_log import LOG, lines_of_successes
from tasks_app.pool.tables import CARRIED, COMPLETED, FENCE_LOST, PENDING, admits
from tasks_app.pool.task_groups import LOCKED, count_members, lock_groups, start_followers

_NOW = "statement_timestamp()"
_OWN = f"{lock_groups(f'SELECT p.batch_id FROM {PENDING} p WHERE p.id = $1')}, "
_SUCCEEDED = f"'{State.SUCCEEDED}'"
_COUNTED = f"""{count_members("gone", goes_to=_SUCCEEDED, now=_NOW)},
    {start_followers("gone", goes_to=_SUCCEEDED, result="$4::jsonb", now=_NOW)}"""
# as text, since the owner of a connection decides how it reads JSON
_STARTED = """(SELECT jsonb_agg(jsonb_build_array(s.id, s.queue, s.wait_s))::text
        FROM started s)"""
_LOST_ELSE = f"CASE WHEN gone.id IS NULL THEN {FENCE_LOST}($1) IS NULL ELSE true END"


def _statement(*, keeps: bool = True, counts: bool = False, tried: bool = False, logs: bool) -> str:
    """Return the statement; its row, if any, is for :func:`started_by_answer`.

    Args:
        keeps: the row goes into the history.
        counts: the task may be a member of a group.
        tried: if not ``keeps``, delete what earlier attempts left, too.
        logs: write a line to the log of transitions.
    """
    # the sub-status of the run's end, or else the one before
    sub_status = "nullif(coalesce($6, sub_status), '')"
    values = ", ".join(sub_status if name == "sub_status" else name for name in CARRIED)
    enter = f"""
    INSERT INTO {COMPLETED} ({", ".join(CARRIED)}, state, result, run_ms, finished_at)
    SELECT {values}, '{State.SUCCEEDED}', $4::jsonb, $5::integer, {_NOW}"""
    return f"""
    WITH {_OWN if counts else ""}gone AS (
        DELETE FROM {PENDING} p
        WHERE p.id = $1 AND {admits(Event.SUCCEED)} AND p.attempt = $2
          AND p.lease_token = $3 AND {LOCKED if counts else "p.batch_id IS NULL"}
        RETURNING {"p.*" if keeps else "p.id, p.attempt, p.owner, p.started_at"}){
        attempts_of("gone") if tried else ""
    }{", " + _COUNTED if counts else ""}{lines_of_successes("gone", _NOW) if logs else ""}
    {enter if keeps else "SELECT NULL"}
    FROM (SELECT) AS one LEFT JOIN gone ON true WHERE {_LOST_ELSE}
    {f"RETURNING {_STARTED}" if counts else ""}
"""


_WAYS: dict[str, dict[str, bool]] = {
    "": {},
    ", counts": {"counts": True},
    ", forgets": {"keeps": False},
    ", forgets all": {"keeps": False, "tried": True},
}
_PLAIN_FENCES = "unnest($1, $2, $3, $4, $5) AS f(id, attempt, token, result, run_ms)"
_PLAIN = f"{admits(Event.SUCCEED)} AND p.batch_id IS NULL"
_COLUMNS_OF_PLAIN = ", ".join(f"p.{name}" for name in CARRIED)


def _plain_ones(*, logs: bool) -> str:
    """Return the statement of several successes whose rows are kept, and that no group counts."""
    return f"""
    WITH held AS MATERIALIZED (
        SELECT {_COLUMNS_OF_PLAIN}, f.result::jsonb AS result, f.run_ms
        FROM {fenced(_PLAIN, WAIT, fences=_PLAIN_FENCES)}),
    gone AS (DELETE FROM {PENDING} p WHERE p.id = ANY(ARRAY(SELECT id FROM held)))
    {lines_of_successes("held", _NOW) if logs else ""}
    INSERT INTO {COMPLETED} ({", ".join(CARRIED)}, result, run_ms, state, finished_at)
    SELECT *, '{State.SUCCEEDED}', {_NOW} FROM held
    WHERE CASE WHEN (SELECT count(*) FROM held) < cardinality($1) THEN {FENCE_LOST}((
        SELECT min(f.id) FROM unnest($1) AS f(id) WHERE f.id <> ALL(ARRAY(SELECT id FROM held))
    )) IS NULL ELSE true END
"""


_PLAIN_WORDS = {
    logs: (f"tasks_app succeeds, plain{', logs' * logs}".encode(), _plain_ones(logs=logs).encode())
    for logs in (False, True)
}
_TYPES_OF_PLAIN = [1016, 1007, 2951, 1009, 1007]  # OIDs of the arrays of the same
_OWN_ROW = f"""
    SELECT FROM {PENDING} p WHERE p.id = $1 AND p.attempt = $2 AND p.lease_token = $3
    FOR NO KEY UPDATE
""".encode()
_TYPES = [20, 23, 2950, 3802, 23, 25]  # OIDs of task, attempt, token, result, run_ms, sub-status


class SuccessStatement(NamedTuple):
    """The last statement of a transaction, for libpq."""

    name: bytes  # of the prepared statement
    sql: bytes
    types: list[int]  # lists, since psycopg 3.2 in C takes nothing else
    values: list[bytes | None]


_WORDS = {
    (way, logs): (
        f"tasks_app succeeds{way}{', logs' * logs}".encode(),
        _statement(**parts, logs=logs).encode(),
    )
    for (way, parts), logs in product(_WAYS.items(), (False, True))
}


def success_statement(settlement: Settlement) -> SuccessStatement:
    """Return the statement of one success; it waits for its row and group."""
    # Its result is for :func:`started_by_answer`. It fails if the claim is lost: see
    # :func:`is_fence_lost`.
    if settlement.task is None or settlement.task.group_id is not None:
        way = ", counts"
    elif settlement.is_kept:
        way = ""
    else:
        way = ", forgets all" if settlement.fence.attempt > 1 else ", forgets"
    result, run_ms, sub_status = settlement.result, settlement.run_ms, settlement.sub_status
    values = [
        *_fence_values(settlement.fence),
        None if result is None else result.encode(),
        None if run_ms is None else b"%d" % run_ms,
        None if sub_status is None else sub_status.encode(),
    ]
    return SuccessStatement(*_WORDS[way, LOG.has_successes], _TYPES, values)


def success_statements(settlements: Sequence[Settlement]) -> list[SuccessStatement]:
    """Return the statements of successes: one for all plain ones, and one for each other."""
    if len(settlements) == 1:
        return [success_statement(settlements[0])]
    plain = [s for s in settlements if _is_plain(s)]
    others = sorted((s for s in settlements if not _is_plain(s)), key=_group_and_id)
    together = [_plain_statement(plain)] if plain else []
    return together + [success_statement(each) for each in others]


def _is_plain(settlement: Settlement) -> bool:
    is_member = settlement.task is None or settlement.task.group_id is not None
    return settlement.is_kept and settlement.sub_status is None and not is_member


def _group_and_id(settlement: Settlement) -> tuple[int, int]:
    """Return where it comes, so that groups are locked in the order in which all lock them."""
    group_id = settlement.task.group_id if settlement.task else None
    return group_id or 0, settlement.fence.task_id


def _plain_statement(settlements: Sequence[Settlement]) -> SuccessStatement:
    ordered = sorted(settlements, key=itemgetter(0))  # as all who lock several rows
    values = [
        array(s.fence.task_id for s in ordered),
        array(s.fence.attempt for s in ordered),
        array(s.fence.token.hex for s in ordered),
        array(None if s.result is None else _quoted(s.result) for s in ordered),
        array(s.run_ms for s in ordered),
    ]
    words = _PLAIN_WORDS[LOG.has_successes]
    return SuccessStatement(*words, _TYPES_OF_PLAIN, [value.encode() for value in values])


def _quoted(element: str) -> str:
    """Return a text as an element of a PostgreSQL array."""
    escaped = element.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def is_fence_lost(error: psycopg.Error) -> bool:
    return error.sqlstate == "TA002"  # raised by ``task_fence_lost``


def started_by_answer(answer: str | bytes | None) -> list[StartedTask]:
    """Return the tasks that the end of a member made due, from the row of the statement."""
    return [] if answer is None else [StartedTask(*each) for each in json.loads(answer)]


def lock_row_statement(fence: Fence) -> SuccessStatement:
    """Return the statement that locks the row of a run."""
    # In a transaction with one snapshot, a renewal would otherwise update the row after the
    # snapshot, and the settle fail. Renewals and rescues skip a locked row: the lock replaces its
    # lease.
    return SuccessStatement(b"", _OWN_ROW, _TYPES[:3], _fence_values(fence))


def _fence_values(fence: Fence) -> list[bytes | None]:
    return [b"%d" % fence.task_id, b"%d" % fence.attempt, fence.token.hex.encode()]
