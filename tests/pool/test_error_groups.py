"""The error pool by fingerprint: groups, their tasks, old rows, marks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from time import perf_counter

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.tasks.error_text import fingerprint_of
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool import error_groups as room
from tasks_app.pool.error_groups import (
    add_missing_fingerprints,
    count_without_fingerprint,
    find_error_groups,
    mark_cause,
    record_new_causes,
    tasks_of_error_group,
    unmark_cause,
)
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.requeue import requeue
from tests.factory import claimed_task, ending

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
AWAY = Cause("shop.Away", "nobody at 7", '  File "/srv/shop/a.py", line 1, in act\n')
OTHER = Cause("shop.Other", "no")


def fail(connection: Connection, cause: Cause = AWAY, at: datetime = NOON, **options) -> int:
    task = claimed_task(connection, **options)
    settle_one(connection, ending(task, Event.FAIL, cause=cause, failures=1), now=at)
    return task.task_id


def forget(connection: Connection) -> None:
    for table in ("task_error", "task_attempt"):
        connection.execute(text(f"UPDATE {table} SET fingerprint = NULL"))


def test_a_group_counts_its_tasks_and_says_when_and_where(connection: Connection) -> None:
    fail(connection, at=NOON - timedelta(hours=30), queue="a")
    fail(connection, Cause(AWAY.kind, "nobody at 8", AWAY.traceback), queue="b")
    newest = fail(connection, at=NOON - timedelta(minutes=90), name="u", queue="b")
    fail(connection, OTHER)

    first, second = find_error_groups(connection, now=NOON)

    assert (first.fingerprint, first.number) == (fingerprint_of(AWAY).hex(), 3)
    assert (first.first_at, first.last_at) == (NOON - timedelta(hours=30), NOON)
    assert (first.names, first.queues) == (["t", "u"], ["a", "b"])
    assert (first.sample_id, first.error) == (newest, "shop.Away: nobody at 7")
    assert first.hours == [0] * 22 + [1, 1]
    assert (second.number, second.known_by) == (1, None)


def test_filters_choose_groups(connection: Connection) -> None:
    fail(connection)
    fail(connection, OTHER, name="u", queue="q", at=NOON + timedelta(hours=1))
    hex_ = fingerprint_of(OTHER).hex()
    for filters in ({"name": "u"}, {"queue": "q"}, {"fingerprint": hex_}):
        assert [g.fingerprint for g in find_error_groups(connection, **filters)] == [hex_]
    assert len(find_error_groups(connection, since=NOON + timedelta(minutes=1))) == 1
    assert find_error_groups(connection, name="nobody") == []


def test_tasks_of_a_group_come_in_pages_newest_first(connection: Connection) -> None:
    ids = [fail(connection, at=NOON + timedelta(minutes=n // 2)) for n in range(5)]
    fail(connection, OTHER)
    hex_ = fingerprint_of(AWAY).hex()
    seen, before = [], None
    while page := tasks_of_error_group(connection, hex_, before=before, most=2):
        seen += [task.id for task in page]
        before = (page[-1].finished_at, page[-1].id)
    assert seen == ids[::-1]


def test_a_requeued_task_leaves_its_group(connection: Connection) -> None:
    requeue(connection, fail(connection))
    assert find_error_groups(connection) == []


@pytest.mark.parametrize("pruned", [False, True])
def test_old_rows_get_the_fingerprint_of_new_ones(connection: Connection, pruned: bool) -> None:
    for cause in (AWAY, OTHER, OTHER):
        fail(connection, cause)
    forget(connection)
    if pruned:
        connection.execute(text("DELETE FROM task_attempt"))
    assert (count_without_fingerprint(connection), find_error_groups(connection)) == (3, [])

    assert [
        add_missing_fingerprints(connection, 2),
        add_missing_fingerprints(connection, 2),
        add_missing_fingerprints(connection, 2),
    ] == [2, 1, 0]

    away = Cause(AWAY.kind, AWAY.message) if pruned else AWAY
    assert {g.fingerprint: g.number for g in find_error_groups(connection)} == {
        fingerprint_of(away).hex(): 1,
        fingerprint_of(OTHER).hex(): 2,
    }
    assert count_without_fingerprint(connection) == 0
    left = text("SELECT count(*) FROM task_attempt WHERE fingerprint IS NULL")
    assert connection.execute(left).scalar() == 0


def test_a_cause_is_entered_once_with_its_first_sighting(connection: Connection) -> None:
    task_id = fail(connection)
    hex_ = fingerprint_of(AWAY).hex()
    assert record_new_causes(connection) == [hex_]
    requeue(connection, task_id)
    fail(connection, at=NOON + timedelta(days=1))
    assert record_new_causes(connection) == []
    row = connection.execute(text("SELECT * FROM task_fingerprint")).one()
    assert (row.kind, row.message, row.frames) == ("shop.Away", "nobody at #", ["shop.a:act"])
    assert find_error_groups(connection)[0].first_at == NOON


def test_a_mark_ends_by_itself_or_is_taken_back(connection: Connection) -> None:
    fail(connection)
    hex_, until = fingerprint_of(AWAY).hex(), NOON + timedelta(days=1)
    assert not mark_cause(connection, "00" * 8, "ann", None, "")
    assert mark_cause(connection, hex_, "ann", until, "ticket 7")

    during, after = (find_error_groups(connection, now=at)[0] for at in (NOON, until))
    assert (during.known_by, during.known_until, during.note) == ("ann", until, "ticket 7")
    assert (after.known_by, after.known_until, after.note) == (None, None, None)
    assert mark_cause(connection, hex_, "bob", None, "")
    assert find_error_groups(connection, now=until)[0].known_by == "bob"
    assert [unmark_cause(connection, hex_), unmark_cause(connection, hex_)] == [True, False]
    assert find_error_groups(connection)[0].known_by is None


FULL = text("""
    INSERT INTO task_error (id, name, queue, state, error, finished_at, fingerprint)
    SELECT n, 'name_' || n % 40, 'queue_' || n % 12, 'FAILED', 'shop.E' || n % 500 || ': no',
        statement_timestamp() - n * interval '10 s', decode(lpad(to_hex(n % 500), 16, '0'), 'hex')
    FROM generate_series(1, 10000) AS n
""")


@pytest.mark.test_all
def test_10_000_errors_of_500_causes_are_read_fast(connection: Connection) -> None:
    connection.execute(FULL)
    connection.execute(text("ANALYZE task_error"))
    some = f"{7:016x}"

    for read in (
        lambda: find_error_groups(connection),
        lambda: tasks_of_error_group(connection, some),
    ):
        took = []
        for _ in range(40):
            began = perf_counter()
            read()
            took.append(perf_counter() - began)
        p95 = sorted(took)[37]
        assert p95 <= 0.2

    values = {"fingerprint": some, "before": None, "before_id": 0, "most": 50}
    plan = connection.execute(text(f"EXPLAIN (ANALYZE, BUFFERS) {room._TASKS}"), values).scalars()
    told = "\n".join(plan)
    assert "task_error_fingerprint" in told
    assert "Seq Scan" not in told
    assert "Rows Removed" not in told
