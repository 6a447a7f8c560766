"""Settle: write the outcome of runs under the fence, and move the rows, in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.groups import StartedTask
from tasks_app.domain.handlers.outcomes import Outages
from tasks_app.domain.tasks.error_text import fingerprint_of
from tasks_app.domain.tasks.run import Fence, Settlement
from tasks_app.domain.tasks.states import Event, State, next_state
from tasks_app.pool.connection.execute import commits_itself
from tasks_app.pool.connection.row_by_row import task_by_task
from tasks_app.pool.fragments.move_rows import (
    AS_IT_WAS,
    SKIP_LOCKED,
    WAIT,
    array,
    attempts_of,
    complete,
    fence_arrays,
    fenced,
    move_out,
    states_of_moved,
)
from tasks_app.pool.fragments.transition_log import Logged, Moving, lines_of_successes
from tasks_app.pool.tables import NOW, PENDING, Clock, admits

_OUTCOMES = """
    unnest(
        CAST(:ids AS bigint[]), CAST(:attempts AS integer[]), CAST(:tokens AS uuid[]),
        CAST(:targets AS text[]), CAST(:waits AS float8[]), CAST(:failures AS smallint[]),
        CAST(:crashes AS smallint[]), CAST(:levels AS smallint[]), CAST(:results AS text[]),
        CAST(:kinds AS text[]), CAST(:messages AS text[]), CAST(:tracebacks AS text[]),
        CAST(:encrypted AS text[]), CAST(:fingerprints AS text[]), CAST(:run_ms AS integer[]),
        CAST(:events AS text[]), CAST(:said AS text[]))
        AS f(id, attempt, token, target, wait, failures, crashes, retry_level, result, kind,
             message, traceback, encrypted_message, fingerprint, run_ms, event, said)
"""
_ENDS = admits(Event.SUCCEED)
_PLAIN = f"{_ENDS} AND p.batch_id IS NULL"  # only members of groups pay for being counted
_AS_IT_WAS = AS_IT_WAS.replace(
    "p.sub_status", "nullif(coalesce(f.said, p.sub_status), '') AS sub_status"
)


def _held(guard: str, lock: str) -> str:
    return f"""
    SELECT {_AS_IT_WAS},
        CASE WHEN p.cancel_requested_at IS NOT NULL
              AND f.target IN ('{State.PENDING}', '{State.FAILED}')
             THEN '{State.CANCELLED}' ELSE f.target END AS goes_to,
        {NOW} + make_interval(secs => f.wait) AS back_at,
        f.failures, coalesce(f.crashes, p.crashes) AS crashes, f.retry_level,
        f.result::jsonb AS result, f.kind, f.message, f.traceback, f.encrypted_message,
        decode(f.fingerprint, 'hex') AS fingerprint, f.run_ms, f.event
    FROM {fenced(guard, lock, fences=_OUTCOMES)}
    """


_GROUP = move_out(_held(_ENDS, SKIP_LOCKED))
ONE = move_out(_held(_ENDS, WAIT), waits=True)
_GROUP_THAT_AWAITS = move_out(_held(_ENDS, SKIP_LOCKED), awaits_needs=True)
_ONE_THAT_AWAITS = move_out(_held(_ENDS, WAIT), waits=True, awaits_needs=True)
"""Of runs that go back until their needs are met; the others do not pay for that."""
_SUCCESSES = """
    unnest(
        CAST(:ids AS bigint[]), CAST(:attempts AS integer[]), CAST(:tokens AS uuid[]),
        CAST(:results AS text[]), CAST(:run_ms AS integer[]))
        AS f(id, attempt, token, result, run_ms)
"""
_SUCCEEDED = complete(f"""
    SELECT {AS_IT_WAS}, p.failures, p.crashes, p.retry_level, f.result::jsonb AS result, f.run_ms
    FROM {fenced(_PLAIN, SKIP_LOCKED, fences=_SUCCESSES)}
""")
"""Nearly all settlements are successes; this has a third of the parameters and branches."""


def _forget(lock: str, *, tried: bool) -> Moving:
    """Return the statement for successes without a row; ``tried``: some had attempts before."""
    gone = f"""
    WITH held AS MATERIALIZED (
        SELECT p.id, p.attempt, p.owner, p.started_at FROM {fenced(_PLAIN, lock)}),
    gone AS (DELETE FROM {PENDING} p WHERE p.id = ANY(ARRAY(SELECT id FROM held)))
    {attempts_of("held") if tried else ""}"""
    lines = lines_of_successes("held")
    return Moving(lambda level: f"{gone}{lines if level is Logged.ALL else ''} SELECT id FROM held")


_FORGOTTEN = {
    (lock, tried): _forget(lock, tried=tried)
    for lock in (SKIP_LOCKED, WAIT)
    for tried in (False, True)
}
FORGET = _FORGOTTEN[WAIT, True]
_HELD = text(f"SELECT p.id FROM {fenced(_ENDS)}")


def settle_group(
    connection: Connection,
    settlements: Sequence[Settlement],
    *,
    started: list[StartedTask] | None = None,
    now: Clock = None,
) -> dict[int, State]:
    """Settle what can be settled without waiting for a lock; return where each went."""
    # The others' fence is lost, or their row or group is locked: see :func:`still_held`. Inserted
    # callbacks are added to ``started``.
    done: dict[int, State] = {}
    forgotten = [s for s in settlements if not s.is_kept]
    kept = [s for s in settlements if s.is_kept] if forgotten else settlements
    try:
        if forgotten:
            done |= _forgotten(connection, forgotten, SKIP_LOCKED, now)
        if kept and all(s.event is Event.SUCCEED and s.sub_status is None for s in kept):
            ids = connection.execute(_SUCCEEDED(), {**_successes(kept), "now": now}).scalars()
            done |= dict.fromkeys(ids, State.SUCCEEDED)
        left = [s for s in kept if s.fence.task_id not in done]  # includes locked rows
        if left and (awaiting := [s for s in left if s.awaits_needs]):
            done |= _moved(connection, _GROUP_THAT_AWAITS, awaiting, now, started)
            left = [s for s in left if not s.awaits_needs]
        if left:
            done |= _moved(connection, _GROUP, left, now, started)
    except DBAPIError:
        if not (done and commits_itself(connection)):
            raise  # else ``done`` is committed, and the caller repeats the rest
    return done


def settle_each(
    connection: Connection, settlements: Sequence[Settlement], left: set[int] | None = None
) -> dict[int, State]:
    """Do the same; ``left`` gets the ids of those that the database refuses."""
    settle = partial(settle_group, connection)
    return task_by_task(connection, settlements, settle, "settling of tasks", left=left)


def settle_nothing(connection: Connection) -> None:
    """Run the statement of successes without any, so that it is planned before the first."""
    connection.execute(_SUCCEEDED(), {**_successes([]), "now": None})


def still_held(connection: Connection, fences: Sequence[Fence]) -> set[int]:
    """Return the ids whose fence still holds, without waiting for locks."""
    return set(connection.execute(_HELD, fence_arrays(fences)).scalars())


def settle_one(
    connection: Connection,
    settlement: Settlement,
    *,
    started: list[StartedTask] | None = None,
    now: Clock = None,
) -> State | None:
    """Settle one run, waiting for its row and its group; return where it went."""
    # None: the fence is lost. An inserted callback is added to ``started``.
    if not settlement.is_kept and _forgotten(connection, [settlement], WAIT, now):
        return State.SUCCEEDED
    statement = _ONE_THAT_AWAITS if settlement.awaits_needs else ONE
    return _moved(connection, statement, [settlement], now, started).get(settlement.fence.task_id)


def _moved(
    connection: Connection,
    statement: Moving,
    settlements: Sequence[Settlement],
    now: Clock,
    started: list[StartedTask] | None = None,
) -> dict[int, State]:
    rows = connection.execute(statement(), {**_arrays(settlements), "now": now}).all()
    if started is not None:
        started += [StartedTask(r.id, r.queue, r.wait_s) for r in rows if r.goes_to is None]
    return states_of_moved(rows)


def _forgotten(
    connection: Connection, settlements: Sequence[Settlement], lock: str, now: Clock
) -> dict[int, State]:
    fences = [s.fence for s in settlements]
    statement = _FORGOTTEN[lock, any(fence.attempt > 1 for fence in fences)]
    ids = connection.execute(statement(), {**fence_arrays(fences), "now": now}).scalars()
    return dict.fromkeys(ids, State.SUCCEEDED)


def _successes(settlements: Sequence[Settlement]) -> dict[str, Any]:
    ordered = sorted(settlements, key=itemgetter(0))
    results = [s.result for s in ordered]
    return {
        **fence_arrays([s.fence for s in ordered]),
        "results": results if any(results) else "{}",  # a shorter array is filled up with nulls
        "run_ms": array(s.run_ms for s in ordered),
    }


def _arrays(settlements: Sequence[Settlement]) -> dict[str, Any]:
    ordered = sorted(settlements, key=itemgetter(0))
    causes = [s.cause for s in ordered]
    return {
        **fence_arrays([s.fence for s in ordered]),
        "targets": array(next_state(State.RUNNING, s.event).value for s in ordered),
        "waits": array(s.wait.total_seconds() if s.wait else 0 for s in ordered),
        "failures": array(s.failures for s in ordered),
        "crashes": array(s.crashes for s in ordered),
        "levels": array(s.retry_level for s in ordered),
        "results": [s.result for s in ordered],
        "kinds": [c.kind if c else None for c in causes],
        "messages": [c.message if c else None for c in causes],
        "tracebacks": [c.traceback if c else None for c in causes],
        "encrypted": [c.encrypted if c else None for c in causes],
        "fingerprints": array(fingerprint_of(c).hex() if c else None for c in causes),
        "run_ms": array(s.run_ms for s in ordered),
        "events": array(s.event.value for s in ordered),
        "said": [s.sub_status for s in ordered],
    }


_COUNT_OUTAGE = text(f"""
    UPDATE {PENDING} SET outages = least(coalesce(outages, 0) + 1, 32767),
        outage_since = coalesce(outage_since, {NOW})
    WHERE id = :task_id AND attempt = :attempt AND lease_token = :token
      AND state = '{State.RUNNING}'
    RETURNING outages, {NOW} - outage_since AS since""")


def count_outage(connection: Connection, fence: Fence) -> Outages | None:
    """Count an outage; None: the fence is lost, and nothing was written."""
    row = connection.execute(_COUNT_OUTAGE, {**fence._asdict(), "now": None}).first()
    return None if row is None else Outages(row.outages, max(row.since, timedelta(0)))
