"""Code of 0.1.0 beside today's writes ``parked`` alone: what it parked is found again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.waiting_reason import WaitingKind, WaitingReason
from tasks_app.pool.dispatch import set_aside
from tasks_app.pool.dispatch.scan import due
from tasks_app.pool.dispatch.set_aside import find_again, park
from tests.factory import LEASE, pending_task, row_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TOMORROW = NOON + timedelta(days=1)
_INDEX = "task_pending_parked_by_old_code"


def test_what_old_code_parked_is_seen_by_the_next_scan(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON, order_key="k")
    _write(connection, task_id, parked="order k", scan_at=TOMORROW)

    assert find_again(connection, 9, now=NOON) == 1

    assert due(connection, {"default": 9}, now=NOON)[0].ids == [task_id]
    row = row_of(connection, task_id)
    assert (row.parked, row.parked_kind, row.parked_for) == (None, None, None)


def test_what_old_code_parked_again_is_seen_whatever_its_kind_was(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON)
    park(connection, [task_id], WaitingReason(WaitingKind.KEY, "l"), LEASE, now=NOON)
    _write(connection, task_id, parked="held by breaker bank", scan_at=TOMORROW)

    assert find_again(connection, 9, now=NOON) == 1

    assert due(connection, {"default": 9}, now=NOON)[0].ids == [task_id]


def test_what_old_code_woke_has_no_kind_any_more(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON)
    reason = WaitingReason(WaitingKind.LET_THROUGH, "bank")
    park(connection, [task_id], reason, LEASE, now=NOON)
    _write(connection, task_id, parked=None, scan_at=NOON + LEASE)

    assert find_again(connection, 9, now=NOON) == 1

    row = row_of(connection, task_id)
    assert (row.parked_kind, row.scan_at) == (None, NOON + LEASE)


@pytest.mark.parametrize("kind", WaitingKind)
def test_what_is_parked_by_this_code_is_left_alone(connection: Connection, kind: str) -> None:
    task_id = pending_task(connection, run_at=NOON)
    park(connection, [task_id], WaitingReason(WaitingKind(kind), "x"), LEASE, now=NOON)
    before = row_of(connection, task_id)

    assert find_again(connection, 9, now=NOON) == 0

    assert row_of(connection, task_id) == before


def test_its_index_says_the_same_as_the_statement(connection: Connection) -> None:
    """Others that suit are dropped: which of them is cheaper, statistics say."""
    others = connection.execute(
        text("""
            SELECT CAST(indexrelid AS regclass)::text FROM pg_index
            WHERE indrelid = CAST('task_pending' AS regclass) AND NOT indisprimary
              AND indexrelid <> CAST(:index AS regclass)"""),
        {"index": _INDEX},
    ).scalars()
    connection.execute(text(f"DROP INDEX {', '.join(others)}"))
    connection.execute(text("SET LOCAL enable_seqscan = off"))
    explain = text(f"EXPLAIN {set_aside.FIND_ASTRAY}")

    plan = connection.execute(explain, {"most": 9}).scalars().all()

    assert any(_INDEX in line for line in plan)


def _write(connection: Connection, task_id: int, *, parked: str | None, scan_at: datetime) -> None:
    connection.execute(
        text("UPDATE task_pending SET parked = :parked, scan_at = :scan_at WHERE id = :id"),
        {"id": task_id, "parked": parked, "scan_at": scan_at},
    )
