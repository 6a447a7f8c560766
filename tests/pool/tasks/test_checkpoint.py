"""Progress: kept under the fence, and for as long as the task may run again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.tasks.run import Cause, Fence
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.leases import release, renew
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.requeue import requeue
from tasks_app.pool.tasks.run_records import (
    Note,
    prune_checkpoints,
    read_checkpoint,
    save_checkpoint,
)
from tests.factory import LEASE, claimed_task, claimer, ending, pending_task
from tests.pool.interleave import blocked, two

AT_5 = Note('{"after": 5}', changed=True, fraction=None, note=None)
HALF = Note(None, changed=False, fraction=0.5, note="half")
NOTHING = Note(None, changed=False, fraction=None, note=None)
CAUSE = Cause("E", "no")


def kept(connection: Connection, task) -> tuple | None:
    found = read_checkpoint(connection, task.task_id)
    return found and tuple(found[:3])


def test_what_is_kept_is_read_again(connection: Connection) -> None:
    task = claimed_task(connection)

    assert save_checkpoint(connection, task.fence, AT_5) is False

    assert kept(connection, task) == ({"after": 5}, None, None)


def test_what_is_not_said_stays(connection: Connection) -> None:
    task = claimed_task(connection)
    save_checkpoint(connection, task.fence, AT_5)
    save_checkpoint(connection, task.fence, HALF)
    assert kept(connection, task) == ({"after": 5}, 0.5, "half")

    save_checkpoint(connection, task.fence, NOTHING)
    assert kept(connection, task) == ({"after": 5}, 0.5, "half")

    save_checkpoint(connection, task.fence, AT_5._replace(checkpoint=None))
    assert kept(connection, task) == (None, 0.5, "half")


def test_nothing_is_written_for_who_says_nothing(connection: Connection) -> None:
    task = claimed_task(connection)

    assert save_checkpoint(connection, task.fence, NOTHING) is False

    assert kept(connection, task) is None


@pytest.mark.parametrize("wrong", ["attempt", "token", "released"])
def test_a_stale_fence_keeps_nothing(connection: Connection, wrong: str) -> None:
    task = claimed_task(connection)
    fence = task.fence
    if wrong == "attempt":
        fence = fence._replace(attempt=2)
    elif wrong == "token":
        fence = Fence(fence.task_id, 1, claimed_task(connection).fence.token)
    else:
        release(connection, [fence])

    assert save_checkpoint(connection, fence, AT_5) is None
    assert kept(connection, task) is None


def test_it_tells_who_shall_stop(connection: Connection) -> None:
    task = claimed_task(connection)
    cancel(connection, task.task_id)

    assert save_checkpoint(connection, task.fence, AT_5) is True


def test_nobody_else_has_the_row_until_the_commit_and_the_renewal_does_not_wait(
    engine: Engine,
) -> None:
    with engine.begin() as connection:
        task = claimed_task(connection)
    with two(engine) as (a, b):
        save_checkpoint(a, task.fence, AT_5)
        assert renew(b, [task.fence], LEASE).ids == frozenset()
        b.rollback()
        late = blocked(engine, b, a, lambda c: release(c, [task.fence], block=True))
        a.commit()
        late.result()
        b.commit()
        assert save_checkpoint(a, task.fence, AT_5) is None


def test_a_release_that_is_first_leaves_nothing_to_commit(engine: Engine) -> None:
    with engine.begin() as connection:
        task = claimed_task(connection)
    with two(engine) as (a, b):
        release(a, [task.fence])
        late = blocked(engine, b, a, lambda c: save_checkpoint(c, task.fence, AT_5))
        a.commit()
        assert late.result() is None


@pytest.mark.parametrize(
    ("event", "stays"),
    [(Event.SUCCEED, False), (Event.SKIP, False), (Event.CANCEL, True), (Event.FAIL, True)],
)
@pytest.mark.parametrize("what", ["pruned", "requeued"])
def test_it_stays_while_the_task_may_go_on(connection: Connection, event, stays, what) -> None:
    task, goes_on = claimed_task(connection), claimed_task(connection)
    for each in (task, goes_on):
        save_checkpoint(connection, each.fence, AT_5)
    settle_one(connection, ending(task, event, cause=CAUSE))

    if what == "requeued":
        requeue(connection, task.task_id)
    else:
        later = datetime.now(UTC) + timedelta(hours=2)
        assert prune_checkpoints(connection, 10) == 0
        assert prune_checkpoints(connection, 10, now=later) == (0 if stays else 1)

    assert (kept(connection, task) is not None) is stays
    assert kept(connection, goes_on) is not None


def test_of_a_task_that_is_nowhere_nothing_stays(connection: Connection) -> None:
    task = claimed_task(connection)
    save_checkpoint(connection, task.fence, AT_5)
    connection.execute(text("DELETE FROM task_pending"))

    assert prune_checkpoints(connection, 10, now=datetime.now(UTC) + timedelta(hours=2)) == 1


def test_the_next_attempt_finds_it(connection: Connection) -> None:
    task_id = pending_task(connection)
    task = claimed_task(connection, task_id)
    save_checkpoint(connection, task.fence, AT_5)
    release(connection, [task.fence])

    (again,) = claim(connection, [task_id], claimer(), task.fence.token)

    assert again.fence.attempt == 2
    assert kept(connection, again) == ({"after": 5}, None, None)
