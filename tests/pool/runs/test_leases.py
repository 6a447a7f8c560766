"""Leases: renewed, given back, ended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.tasks.error_text import fingerprint_of
from tasks_app.domain.tasks.run import Cause, Fence
from tasks_app.domain.tasks.states import State
from tasks_app.pool.runs.claim import claim, fetch_payload
from tasks_app.pool.runs.heartbeats import live_workers, prune, remove_heartbeat, write_heartbeat
from tasks_app.pool.runs.leases import (
    find_cancelled,
    release,
    release_token,
    renew,
    rescue_claims,
    rescue_expired,
)
from tasks_app.pool.runs.settle import still_held
from tasks_app.pool.tasks.browse import failed_attempts
from tasks_app.pool.tasks.cancel import cancel
from tests.factory import LEASE, claimed_task, claimer, count, pending_task, pool_of_task, row_of
from tests.pool.interleave import two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WITHIN = timedelta(seconds=30)


def say(connection: Connection, owner: str = "w1", now=NOON, **changes) -> None:
    values = {"node": "host", "queues": ["q"], "handlers": ["a", "b"], "running": []}
    write_heartbeat(connection, owner=owner, now=now, **{**values, **changes})


def test_a_child_that_was_heard_of_is_alive(connection: Connection) -> None:
    running = [{"id": 7, "name": "a", "seconds": 1.5, "note": "é"}]
    say(connection, queues=["q", "r"], threads=4, running=running)
    (worker,) = live_workers(connection, WITHIN, now=NOON)
    assert (worker.owner, worker.node) == ("w1", "host")
    assert (worker.queues, worker.handlers) == (("q", "r"), ("a", "b"))
    assert (worker.threads, worker.running) == (4, running)
    assert (worker.started_at, worker.seen_at) == (NOON, NOON)


def test_a_second_beat_tells_what_runs_now_and_keeps_the_start(connection: Connection) -> None:
    say(connection)
    say(connection, now=NOON + timedelta(seconds=5), running=[{"id": 1}])
    (worker,) = live_workers(connection, WITHIN, now=NOON)
    assert worker.running == [{"id": 1}]
    assert (worker.started_at, worker.seen_at) == (NOON, NOON + timedelta(seconds=5))


def test_a_child_that_was_not_heard_of_for_that_time_is_not_alive(connection: Connection) -> None:
    say(connection)
    assert live_workers(connection, WITHIN, now=NOON + WITHIN) == []
    assert len(live_workers(connection, WITHIN, now=NOON + WITHIN - timedelta(microseconds=1))) == 1


@pytest.mark.parametrize(
    ("note", "kept"), [("a\x00b", "a\ufffdb"), ("a\ud800b", "a?b"), ("é\\u0000", "é\\u0000")]
)
def test_a_note_no_column_accepts_is_mended(connection: Connection, note: str, kept: str) -> None:
    say(connection, running=[{"id": 1, "fraction": 0.5, "note": note}])
    (worker,) = live_workers(connection, WITHIN, now=NOON)
    assert worker.running == [{"id": 1, "fraction": 0.5, "note": kept}]


def test_children_are_listed_by_owner(connection: Connection) -> None:
    for owner in ("b", "a", "c"):
        say(connection, owner)
    assert [worker.owner for worker in live_workers(connection, WITHIN, now=NOON)] == [
        "a",
        "b",
        "c",
    ]


def test_a_child_that_leaves_is_off_the_list_and_may_leave_twice(connection: Connection) -> None:
    say(connection, "a")
    say(connection, "b")
    remove_heartbeat(connection, "a")
    remove_heartbeat(connection, "a")
    assert [worker.owner for worker in live_workers(connection, WITHIN, now=NOON)] == ["b"]


def test_only_children_that_nobody_heard_of_for_long_are_forgotten(connection: Connection) -> None:
    say(connection, "old")
    say(connection, "new", now=NOON + timedelta(seconds=1))
    prune(connection, timedelta(hours=1), now=NOON + timedelta(hours=1, seconds=1))
    assert count(connection, "task_worker") == 1
    assert [w.owner for w in live_workers(connection, timedelta(days=1), now=NOON)] == ["new"]


def test_a_beat_is_open_then_the_prune_of_another_child_does_not_wait(engine: Engine) -> None:
    with two(engine) as (a, b):
        say(a, "old")
        a.commit()
        say(a, "alive", now=NOON + timedelta(days=1))
        prune(b, timedelta(hours=1), now=NOON + timedelta(days=1))
        assert count(b, "task_worker") == 0


LATER = NOON + timedelta(minutes=1)
either_way = pytest.mark.parametrize("block", [False, True], ids=["group", "waiting"])


@either_way
def test_a_released_claim_is_pending_again_uncharged(connection: Connection, block) -> None:
    task = claimed_task(connection, pending_task(connection, failures=1, crashes=1), now=None)
    assert release(connection, [task.fence], block=block, now=LATER).keys() == {task.task_id}
    row = row_of(connection, task.task_id)
    assert (row.state, row.failures, row.crashes, row.retry_level) == ("PENDING", 1, 1, 0)
    assert (row.lease_token, row.lease_until, row.owner) == (None, None, None)
    assert row.due_at == row.scan_at == LATER
    assert row.attempt == task.fence.attempt
    assert count(connection, "task_attempt") == 0


def test_a_release_may_wait(connection: Connection) -> None:
    task = claimed_task(connection, now=NOON)
    release(connection, [task.fence], wait=timedelta(seconds=5), now=LATER)
    assert row_of(connection, task.task_id).due_at == LATER + timedelta(seconds=5)


FENCED: dict[str, Callable[[Connection, Fence], Any]] = {
    "a release": lambda c, fence: release(c, [fence]),
    "a release that waits": lambda c, fence: release(c, [fence], block=True),
    "a renewal": lambda c, fence: renew(c, [fence], LEASE),
    "a rescue": lambda c, fence: rescue_claims(c, [fence], lease=LEASE, max_crashes=5),
    "a payload": fetch_payload,
    "a look": lambda c, fence: still_held(c, [fence]),
}


@pytest.mark.parametrize("wrong", ["token", "attempt", "task_id"])
@pytest.mark.parametrize("verb", FENCED.values(), ids=FENCED)
def test_a_stale_fence_gets_and_changes_nothing(connection: Connection, verb, wrong: str) -> None:
    fence = claimed_task(connection).fence
    before = row_of(connection, fence.task_id)
    stale = {"token": uuid4(), "attempt": fence.attempt + 1, "task_id": fence.task_id + 1}
    assert not verb(connection, fence._replace(**{wrong: stale[wrong]}))
    assert row_of(connection, fence.task_id) == before
    assert verb(connection, fence)


@either_way
def test_a_released_task_with_a_cancel_does_not_come_back(connection: Connection, block) -> None:
    task = claimed_task(connection)
    cancel(connection, task.task_id)
    assert release(connection, [task.fence], block=block).keys() == {task.task_id}
    assert pool_of_task(connection, task.task_id) == "completed CANCELLED"


def test_of_a_group_those_go_back_whose_fence_holds(connection: Connection) -> None:
    good, stale = claimed_task(connection), claimed_task(connection)
    release(connection, [stale.fence])
    assert release(connection, [good.fence, stale.fence]).keys() == {good.task_id}


def test_nothing_to_release_is_no_error(connection: Connection) -> None:
    assert release(connection, []).keys() == set()


def test_a_claim_whose_reply_was_lost_goes_back_by_its_token_free(connection: Connection) -> None:
    ids, token = [pending_task(connection) for _ in range(3)], uuid4()
    claim(connection, ids, claimer(), token)
    other = claimed_task(connection)
    assert release_token(connection, token, now=LATER) == set(ids)
    assert {row_of(connection, i).state for i in ids} == {"PENDING"}
    assert {row_of(connection, i).failures for i in ids} == {0}
    assert {row_of(connection, i).due_at for i in ids} == {LATER}
    assert pool_of_task(connection, other.task_id) == "pending RUNNING"


def test_a_token_that_took_nothing_releases_nothing(connection: Connection) -> None:
    task = claimed_task(connection)
    assert release_token(connection, uuid4()) == set()
    assert pool_of_task(connection, task.task_id) == "pending RUNNING"


def test_a_lost_claim_that_was_to_be_cancelled_does_not_come_back(connection: Connection) -> None:
    task = claimed_task(connection)
    cancel(connection, task.task_id)
    release_token(connection, task.fence.token)
    assert pool_of_task(connection, task.task_id) == "completed CANCELLED"


RENEWED_AT = NOON + timedelta(seconds=10)


def test_a_renewal_pushes_the_lease(connection: Connection) -> None:
    tasks = [claimed_task(connection, now=NOON) for _ in range(3)]
    renewed = renew(connection, [t.fence for t in tasks], LEASE, now=RENEWED_AT)
    assert renewed == {t.task_id for t in tasks}
    assert {row_of(connection, t.task_id).lease_until for t in tasks} == {RENEWED_AT + LEASE}


def test_a_claim_that_was_given_back_is_not_renewed(connection: Connection) -> None:
    task = claimed_task(connection)
    release(connection, [task.fence])
    assert renew(connection, [task.fence], LEASE) == frozenset()
    assert row_of(connection, task.task_id).lease_until is None


def test_a_child_finds_which_of_its_runs_to_end_and_when_to_have_them_killed(
    connection: Connection,
) -> None:
    stop, kill, go, other = (claimed_task(connection, now=NOON) for _ in range(4))
    for task in (stop, other):
        cancel(connection, task.task_id, now=NOON)
    for after_s in (9, 5, 7, None):  # the soonest counts
        after = None if after_s is None else timedelta(seconds=after_s)
        cancel(connection, kill.task_id, kill_after=after, now=NOON)
    fences = [stop.fence, kill.fence, go.fence, other.fence._replace(attempt=9)]
    found = find_cancelled(connection, fences, now=NOON + timedelta(seconds=1))
    assert found == {stop.task_id: None, kill.task_id: 4.0}


def test_a_cancel_of_what_waits_alone_lets_a_run_go_on(connection: Connection) -> None:
    waits, runs = pending_task(connection), claimed_task(connection)
    answers = [cancel(connection, int(i), only_waiting=True) for i in (waits, runs.task_id)]
    assert answers == ["cancelled", "running"]
    assert find_cancelled(connection, [runs.fence]) == {}


def test_a_lease_that_ran_out_unnoticed_may_still_be_renewed(connection: Connection) -> None:
    task = claimed_task(connection, now=NOON)
    renewed = renew(connection, [task.fence], LEASE, now=NOON + timedelta(hours=1))
    assert renewed == {task.task_id}


def test_other_claims_of_the_same_owner_are_not_renewed(connection: Connection) -> None:
    mine, lost = (claimed_task(connection, owner="me", now=NOON) for _ in range(2))
    renew(connection, [mine.fence], LEASE, now=RENEWED_AT)
    assert row_of(connection, lost.task_id).lease_until == NOON + LEASE


def test_nothing_to_renew_is_no_error(connection: Connection) -> None:
    assert renew(connection, [], LEASE) == frozenset()


OVER = NOON + LEASE + timedelta(microseconds=1)


def by_lease(connection: Connection, *tasks, now=OVER) -> dict[int, State]:
    return rescue_expired(connection, lease=LEASE, max_crashes=5, now=now)


def by_claim(connection: Connection, *tasks, now=OVER) -> dict[int, State]:
    fences = [task.fence for task in tasks]
    return rescue_claims(connection, fences, lease=LEASE, max_crashes=5, now=now)


either_way_of_rescue = pytest.mark.parametrize(
    "rescue", [by_lease, by_claim], ids=["lease", "claims"]
)


def a_claim(connection: Connection, **options):
    return claimed_task(connection, pending_task(connection, now=NOON, **options), now=NOON)


@either_way_of_rescue
def test_a_rescued_task_comes_back_charged_one_crash(connection: Connection, rescue) -> None:
    task = a_claim(connection, failures=1)
    assert rescue(connection, task) == {task.task_id: State.PENDING}
    row = row_of(connection, task.task_id)
    assert (row.state, row.crashes, row.failures, row.attempt) == ("PENDING", 1, 1, 2)
    assert (row.lease_token, row.lease_until, row.owner) == (None, None, None)


def test_a_lease_is_over_only_after_its_last_instant(connection: Connection) -> None:
    task = a_claim(connection)
    assert by_lease(connection, now=NOON + LEASE) == {}
    assert by_lease(connection, now=OVER) == {task.task_id: State.PENDING}


@either_way_of_rescue
def test_a_pending_task_is_not_rescued(connection: Connection, rescue) -> None:
    task = a_claim(connection)
    release(connection, [task.fence], now=NOON)
    assert rescue(connection, task) == {}
    assert row_of(connection, task.task_id).crashes == 0


def test_claims_of_a_dead_child_come_back_before_their_lease_ends(connection: Connection) -> None:
    task = a_claim(connection)
    assert by_claim(connection, task, now=NOON) == {task.task_id: State.PENDING}


@either_way_of_rescue
@pytest.mark.parametrize(("before", "after"), [(3, State.PENDING), (4, State.FAILED)])
def test_the_task_that_was_on_board_too_often_goes_to_the_error_pool(
    connection: Connection, rescue, before: int, after: State
) -> None:
    task = a_claim(connection, crashes=before)
    assert rescue(connection, task) == {task.task_id: after}
    if after is State.FAILED:
        row = row_of(connection, task.task_id, "task_error")
        assert row.crashes == 5
        assert row.error.startswith("worker vanished: ")
        assert "5 of at most 5" in row.error


@either_way_of_rescue
def test_the_outcome_of_an_at_most_once_task_is_unknown(connection: Connection, rescue) -> None:
    task = a_claim(connection, at_most_once=True)
    assert rescue(connection, task) == {task.task_id: State.FAILED}
    assert row_of(connection, task.task_id, "task_error").error.startswith("outcome unknown: ")


@either_way_of_rescue
@pytest.mark.parametrize("options", [{}, {"crashes": 4}, {"at_most_once": True}])
def test_a_task_with_a_cancel_is_cancelled(connection: Connection, rescue, options) -> None:
    task = a_claim(connection, **options)
    cancel(connection, task.task_id)
    assert rescue(connection, task) == {task.task_id: State.CANCELLED}
    assert pool_of_task(connection, task.task_id) == "completed CANCELLED"


@either_way_of_rescue
def test_a_rescue_leaves_a_line_in_the_history(connection: Connection, rescue) -> None:
    task = a_claim(connection)
    rescue(connection, task)
    (line,) = failed_attempts(connection, task.task_id)
    assert (line.event, line.kind, line.attempt) == ("rescue", "worker vanished", 1)
    assert (line.owner, line.started_at, line.ended_at) == ("w1", NOON, OVER)


@pytest.mark.parametrize(("crashes", "times"), [(0, 5 / 30), (1, 4), (3, 16)])
def test_rescued_tasks_come_back_at_random_distances_that_double_with_each_crash(
    connection: Connection, crashes: int, times: int
) -> None:
    tasks = [a_claim(connection, crashes=crashes) for _ in range(60)]
    by_lease(connection)
    waits = [(row_of(connection, t.task_id).due_at - OVER) / LEASE for t in tasks]
    assert len(set(waits)) > 50
    assert 0 <= min(waits) < times * 0.2
    assert times * 0.8 < max(waits) <= times
    assert all(row_of(connection, t.task_id).scan_at >= OVER for t in tasks[:5])


def test_at_most_so_many_are_rescued_at_once_lowest_id_first(connection: Connection) -> None:
    tasks = [a_claim(connection) for _ in range(3)]
    first = rescue_expired(connection, lease=LEASE, max_crashes=5, most=2, now=OVER)
    assert sorted(first) == [t.task_id for t in tasks[:2]]
    assert sorted(by_lease(connection)) == [tasks[2].task_id]


def test_only_those_whose_lease_is_over_are_rescued(connection: Connection) -> None:
    dead = a_claim(connection)
    alive = claimed_task(connection, now=OVER)
    assert by_lease(connection) == {dead.task_id: State.PENDING}
    assert pool_of_task(connection, alive.task_id) == "pending RUNNING"


def test_no_claims_to_take_back_is_no_error(connection: Connection) -> None:
    assert rescue_claims(connection, [], lease=LEASE, max_crashes=5) == {}


def test_a_task_with_very_many_crashes_behind_it_does_not_overflow(connection: Connection) -> None:
    task = a_claim(connection, crashes=200)
    moved = rescue_expired(connection, lease=LEASE, max_crashes=10_000, now=OVER)
    assert moved == {task.task_id: State.PENDING}
    assert row_of(connection, task.task_id).due_at <= OVER + LEASE * 1024
    assert count(connection) == 1


@either_way_of_rescue
@pytest.mark.parametrize("at_most_once", [True, False])
def test_a_rescue_has_its_fingerprint(connection: Connection, rescue, at_most_once: bool) -> None:
    crashes = 0 if at_most_once else 4
    task = a_claim(connection, at_most_once=at_most_once, crashes=crashes)
    assert rescue(connection, task) == {task.task_id: State.FAILED}
    row = connection.execute(
        text(
            "SELECT e.fingerprint, a.kind, a.message FROM task_error e JOIN task_attempt a ON true"
        )
    ).one()
    assert row.fingerprint == fingerprint_of(Cause(row.kind, row.message))
