"""Many tasks at once: by filter, staged, noted, and never twice."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from sqlalchemy import Connection, Engine, event, text

from tasks_app.domain.creation import NewTask
from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.operations import audit
from tasks_app.pool.operations.selection import ROWS_PER_PAGE
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.browse import get
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.runtime.api.bulk import STEP, foresee_bulk, foresee_rest, run_bulk, start_bulk
from tasks_app.runtime.api.bulk_step import HELD, KEY_TAKEN, Done
from tasks_app.runtime.api.groups import create_group
from tasks_app.runtime.api.producer import create_tasks
from tasks_app.runtime.handlers.registry import Registry, handler
from tests.clock import until
from tests.factory import claimed_task, do, ending, pending_task, run_sql, some
from tests.pool.interleave import pid_of
from tests.runtime.api.acts import failed_task, make, pools
from tests.statements import once_after

OLD = datetime(2020, 1, 1, tzinfo=UTC)


class Order(BaseModel):
    """What the handler below takes."""

    order_id: int

    @field_validator("order_id")
    @classmethod
    def is_real(cls, order_id: int) -> int:
        if order_id > 100:
            raise ValueError(f"{order_id} is no order")
        return order_id


REGISTRY = Registry()


@handler("order", registry=REGISTRY)
def order(ctx: Any, payload: Order) -> None:
    pass


@handler("free", registry=REGISTRY)
def free(ctx: Any, payload: dict) -> None:
    pass


def retried_task(connection: Connection, kind: str, message: str, **options: Any) -> int:
    task = claimed_task(connection, **options)
    settle_one(connection, ending(task, Event.RETRY, cause=Cause(kind, message), failures=1))
    return task.task_id


def lines(engine: Engine, token: int) -> list[audit.AuditLine]:
    return do(engine, audit.steps, token)


def bulk(engine: Engine, action: str, **words: Any) -> Done:
    return some(run_bulk(engine, start_bulk(engine, action, **words), registry=REGISTRY))


def killed_at_its_second_step(engine: Engine, token: int) -> None:
    noted: list[str] = []

    def dies(_: object, __: object, statement: str, *___: object) -> None:
        if "INSERT INTO task_audit" in statement:
            noted.append(statement)
        if len(noted) == 2:
            raise KeyboardInterrupt

    killed = engine.execution_options()
    event.listen(killed, "before_cursor_execute", dies)
    with pytest.raises(KeyboardInterrupt):
        run_bulk(killed, token)


# -- what is meant
@pytest.mark.parametrize(
    "chosen",
    [
        {"name": "mine"},
        {"queue": "mine"},
        {"biz_key": "mine"},
        {"error_kind": "Mine"},
        {"error_kind": "shop.errors.Mine"},
        {"error_text": "IS MINE"},
        {"older_than": "1d"},
        {"ids": "mine"},
        {"name": "mine", "biz_key": "mine", "older_than": "1d", "error_text": "mine"},
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("pool", ["pending", "error"])
def test_what_is_given_must_all_be_true(engine: Engine, chosen: dict, pool: str) -> None:
    made = {"pending": retried_task, "error": failed_task}[pool]
    action = {"pending": "cancel", "error": "requeue"}[pool]
    kind, message = "shop.errors.Mine", "this is mine"
    with engine.begin() as connection:
        mine = made(connection, kind, message, name="mine", queue="mine", biz_key="mine")
        other = made(connection, "shop.errors.NotMine", "another's", name="o", biz_key="o")
        table, since = {
            "pending": ("task_pending", "created_at"),
            "error": ("task_error", "finished_at"),
        }[pool]
        connection.execute(
            text(f"UPDATE {table} SET {since} = :old WHERE id = :id"), {"old": OLD, "id": mine}
        )
    if "ids" in chosen:
        chosen = {"ids": [mine, 10**9]}

    done = bulk(engine, action, **chosen)

    assert done.ids == [mine]
    assert done.answers.total() == 1
    assert pools(engine, [other]) == {
        {"pending": "pending PENDING", "error": "error FAILED"}[pool]: 1
    }


@pytest.mark.parametrize("action", ["hold", "cancel", "requeue"])
def test_members_of_a_group_are_selected(engine: Engine, action: str) -> None:
    group = do(engine, create_group, [NewTask("t") for _ in range(3)])
    make(engine, 2)
    if action == "requeue":
        do(engine, cancel, group.task_ids[0])
        group.task_ids[1:] = []
    pool = {"requeue": "completed"}.get(action, "pending")
    assert bulk(engine, action, group=group.id, pool=pool).ids == group.task_ids
    assert bulk(engine, "cancel", group=group.id + 1).ids == []


def test_newer_than_is_the_other_half(engine: Engine) -> None:
    with engine.begin() as connection:
        old, new = failed_task(connection), failed_task(connection)
        connection.execute(
            text("UPDATE task_error SET finished_at = :old WHERE id = :id"), {"old": OLD, "id": old}
        )
    assert bulk(engine, "requeue", name="t", newer_than="1d").ids == [new]


def test_a_state_is_asked_again_under_the_lock(engine: Engine) -> None:
    """What waited when it was looked up, and runs now, is not what was meant."""
    (task_id,) = make(engine, 1)
    own = engine.execution_options()
    with once_after(own, "AS fits FROM", lambda: do(engine, claimed_task, task_id)):
        done = bulk(own, "cancel", name="t", state="PENDING")
    assert done.number == 0
    task = some(do(engine, get, task_id))
    assert task.cancel_requested_at is None


def test_waiting_ones_are_cancelled_and_running_ones_told(engine: Engine) -> None:
    waiting = make(engine, 2)
    running = do(engine, claimed_task).task_id
    done = bulk(engine, "cancel", name="t")
    assert done.answers == {"cancelled": 2, "requested": 1}
    assert done.ids == [*waiting, running]
    assert pools(engine, done.ids) == {"completed CANCELLED": 2, "pending RUNNING": 1}


def test_of_the_completed_pool_only_when_it_is_named(engine: Engine) -> None:
    make(engine, 1)
    bulk(engine, "cancel", name="t")
    assert bulk(engine, "requeue", name="t").number == 0
    assert bulk(engine, "requeue", name="t", pool="completed").answers == {"requeued": 1}


# -- stages
def test_first_ten_then_the_rest_of_what_was_there_at_the_start(engine: Engine) -> None:
    ids = make(engine, 25)
    token = start_bulk(engine, "cancel", name="t", by="ann")

    ten = some(run_bulk(engine, token, first=10, by="ann"))
    later = make(engine, 3)
    rest = some(run_bulk(engine, token, by="bob"))
    again = some(run_bulk(engine, token))

    assert (ten.ids, ten.more) == (ids[:10], True)
    assert (rest.ids, rest.more) == (ids[10:], False)
    assert (again.number, again.more) == (0, False)
    assert pools(engine, later) == {"pending PENDING": 3}
    opening, *steps = lines(engine, token)
    assert (opening.who, opening.what) == ("ann", {"pool": "pending", "name": "t"})
    assert [(s.who, s.number, s.ids) for s in steps] == [
        ("ann", 10, ids[:10]),
        ("bob", 15, ids[10:]),
    ]


def test_what_fails_after_the_start_is_not_requeued_with_the_rest(engine: Engine) -> None:
    (task_id,) = make(engine, 1)
    token = start_bulk(engine, "requeue", name="t")
    with engine.begin() as connection:
        task = claimed_task(connection, task_id)
        settle_one(connection, ending(task, Event.FAIL, cause=Cause("E", "m")))
    done = some(run_bulk(engine, token))
    assert done.number == 0
    assert pools(engine, [task_id]) == {"error FAILED": 1}


def test_steps_are_short_and_each_is_a_line(engine: Engine) -> None:
    others = [NewTask("other")] * ROWS_PER_PAGE
    with engine.begin() as connection:
        create_tasks(connection, others[:3])
        ids = create_tasks(connection, [NewTask("t")] * (STEP + 50))
        create_tasks(connection, others)
        ids += create_tasks(connection, [NewTask("t")])

    done = bulk(engine, "cancel", name="t")

    assert done.ids == ids
    _, *steps = lines(engine, done.token)
    assert [one for step in steps for one in step.ids] == ids
    assert [step.number for step in steps if step.number] == [STEP, 50, 1]
    assert steps[-1].after is None


def test_a_killed_one_is_taken_up_after_its_last_step(engine: Engine) -> None:
    ids = make(engine, STEP + 6)
    token = start_bulk(engine, "cancel", name="t")
    killed_at_its_second_step(engine, token)
    assert pools(engine, ids) == {"completed CANCELLED": STEP, "pending PENDING": 6}
    done = some(run_bulk(engine, token))
    assert done.ids == ids[STEP:]
    assert sum(line.number for line in lines(engine, token)) == STEP + 6


def test_three_that_go_on_at_once_share_the_work(engine: Engine) -> None:
    ids = make(engine, 60)
    token = start_bulk(engine, "cancel", name="t")

    def work() -> None:
        while (done := run_bulk(engine, token, first=3)) and done.more:
            pass

    with ThreadPoolExecutor(3) as threads:
        for _ in range(3):
            threads.submit(work)

    told = [one for line in lines(engine, token) for one in line.ids]
    assert told == ids
    assert pools(engine, ids) == {"completed CANCELLED": 60}


def test_there_is_no_such_bulk(engine: Engine) -> None:
    single = do(engine, audit.note, "pause", {"queue": "q"})
    assert run_bulk(engine, single) is None
    assert run_bulk(engine, 10**9) is None
    assert foresee_rest(engine, 10**9) is None


# -- what is left as it is
@pytest.mark.test_all
def test_a_row_that_somebody_holds_is_left_and_named(engine: Engine) -> None:
    ids = make(engine, 5)
    with engine.connect() as somebody:
        somebody.execute(text("SELECT FROM task_pending WHERE id = :id FOR UPDATE"), {"id": ids[2]})
        done = bulk(engine, "cancel", name="t")
        somebody.rollback()

    assert dict(done.left_out) == {HELD: [ids[2]]}
    assert done.answers == {"cancelled": 4}
    assert pools(engine, [ids[2]]) == {"pending PENDING": 1}
    assert [line.left_out for line in lines(engine, done.token) if line.left_out] == [
        {HELD: [ids[2]]}
    ]


def test_a_unique_key_taken_meanwhile_leaves_its_task(engine: Engine) -> None:
    with engine.begin() as connection:
        failed = failed_task(connection, unique_key="k"), failed_task(connection)
        pending_task(connection, unique_key="k")
    done = bulk(engine, "requeue", name="t")
    assert done.answers == {"requeued": 1}
    assert dict(done.left_out) == {KEY_TAKEN: [failed[0]]}


# -- payloads
def payload_of(engine: Engine, task_id: int) -> Any:
    task = do(engine, get, task_id)
    return task and task.payload


def test_payloads_are_patched(engine: Engine) -> None:
    waiting = make(engine, 2, name="free", payload={"a": {"b": 1}, "c": 2})
    failed = do(engine, failed_task, name="free", payload={"a": {"b": 1}, "c": 2})
    done = bulk(engine, "edit", name="free", patch={"a": {"b": 3}, "c": None})
    of_failed = bulk(engine, "edit", name="free", pool="error", patch={"c": 9})
    assert (done.ids, of_failed.ids) == (waiting, [failed])
    assert [payload_of(engine, one) for one in waiting] == [{"a": {"b": 3}}] * 2
    assert payload_of(engine, failed) == {"a": {"b": 1}, "c": 9}


def test_a_payload_that_the_model_refuses_stays_and_is_named_by_its_id(engine: Engine) -> None:
    good = make(engine, 1, name="order", payload={"order_id": 1})
    bad = make(engine, 1, name="order", payload={"order_id": 2, "discount": 471147114711})

    done = bulk(engine, "edit", ids=bad, patch={"order_id": 471247124712})
    fine = bulk(engine, "edit", name="order", patch={"order_id": 50})

    assert dict(done.left_out) == {"its handler refuses payload.order_id": bad}
    assert done.ids == []
    assert fine.ids == good + bad
    opening, step = lines(engine, done.token)
    assert (step.number, step.left_out) == (0, dict(done.left_out))
    told = f"{done!r}{step!r}{opening!r}"
    assert "471147114711" not in told
    assert "471247124712" not in told


def test_a_payload_is_left_where_nobody_can_say_whether_it_is_good(engine: Engine) -> None:
    (task_id,) = make(engine, 1, name="unknown", payload={"a": 1})
    done = bulk(engine, "edit", name="unknown", patch={"a": 2})
    assert dict(done.left_out) == {"its handler is not known here": [task_id]}
    assert payload_of(engine, task_id) == {"a": 1}


def test_what_runs_keeps_the_payload_that_it_has(engine: Engine) -> None:
    running = do(engine, claimed_task, name="free", payload={"a": 1}).task_id
    assert bulk(engine, "edit", name="free", patch={"a": 2}).number == 0
    assert payload_of(engine, running) == {"a": 1}


# -- beforehand
def test_what_would_be_done_is_counted_and_nothing_changes(engine: Engine) -> None:
    make(engine, 3)
    do(engine, claimed_task)
    foreseen = foresee_bulk(engine, "cancel", name="t")
    assert foreseen.counts == {("t", "PENDING"): 3, ("t", "RUNNING"): 1}
    assert do(engine, audit.find) == []


def test_refused_payloads_are_foreseen(engine: Engine) -> None:
    good, bad = make(engine, 2, name="order", payload={"order_id": 1})
    run_sql(
        engine, "UPDATE task_pending SET payload = '{\"order_id\": 700}' WHERE id = :id", id=bad
    )
    foreseen = foresee_bulk(engine, "edit", name="order", patch={"n": 1}, registry=REGISTRY)
    assert foreseen.counts.total() == 2
    assert foreseen.left_out == {"its handler refuses payload.order_id": [bad]}
    assert payload_of(engine, good) == {"order_id": 1}


def test_the_rest_is_counted(engine: Engine) -> None:
    make(engine, 5)
    token = start_bulk(engine, "cancel", name="t")
    run_bulk(engine, token, first=2)
    make(engine, 1)
    rest = some(foresee_rest(engine, token))
    assert rest.counts.total() == 3


@pytest.mark.parametrize(
    ("action", "words"),
    [("cancel", {}), ("delete", {"name": "t"}), ("edit", {"name": "t"}), ("hold", {"group": "x"})],
)
def test_nonsense_is_refused_and_not_noted(engine: Engine, action: str, words: Any) -> None:
    with pytest.raises(InvalidSelectionError):
        start_bulk(engine, action, **words)
    with pytest.raises(InvalidSelectionError):
        start_bulk(engine, "cancel", name="t", patch={"a": 1})
    assert do(engine, audit.find) == []


def test_ages_count_from_the_start(engine: Engine) -> None:
    """However long it takes until the rest."""
    make(engine, 1)
    token = start_bulk(engine, "cancel", name="t", older_than=timedelta(hours=1))
    run_sql(engine, "UPDATE task_pending SET created_at = created_at - interval '61m'")
    run_sql(engine, "UPDATE task_audit SET at = at - interval '30m'")
    done = some(run_bulk(engine, token))
    assert done.number == 0


def test_a_group_that_is_counted_is_waited_for_before_members_are_locked(engine: Engine) -> None:
    """Else a run that ends, and has locked the group, would meet a step that waits for it."""
    group = do(engine, create_group, [NewTask("t"), NewTask("other")])
    member, other = group.task_ids
    token = start_bulk(engine, "cancel", name="t")
    with engine.connect() as counting, engine.connect() as looking:
        cancel(counting, other)
        step = threading.Thread(target=run_bulk, args=(engine, token))
        step.start()
        mine = pid_of(counting)

        def is_waited_for() -> bool:
            looking.rollback()  # within a transaction the list of sessions stays as it was
            return bool(looking.execute(BLOCKED, {"pid": mine}).scalar())

        until(is_waited_for)
        free_row = looking.execute(FREE, {"id": member}).all()
        looking.rollback()
        counting.commit()
        step.join()

    assert len(free_row) == 1
    assert pools(engine, [member]) == {"completed CANCELLED": 1}


BLOCKED = text("SELECT bool_or(:pid = ANY(pg_blocking_pids(pid))) FROM pg_stat_activity")
FREE = text("SELECT id FROM task_pending WHERE id = :id FOR UPDATE SKIP LOCKED")


def rows(engine: Engine, ids: list[int]) -> list[Any]:
    with engine.connect() as connection:
        found = text("SELECT * FROM task_pending WHERE id = ANY(:ids) ORDER BY id")
        return list(connection.execute(found, {"ids": ids}))


def gaps(engine: Engine, ids: list[int]) -> list[timedelta]:
    """Return by how much each is due behind the one before."""
    return [b - a for a, b in pairwise(row.due_at for row in rows(engine, ids))]


def retrying_task(engine: Engine, **options: Any) -> int:
    with engine.begin() as connection:
        task = claimed_task(connection, **options)
        back = ending(task, Event.RETRY, failures=1, wait=timedelta(hours=1))
        settle_one(connection, back)
        return task.task_id


@pytest.mark.parametrize(
    ("action", "words", "answer", "column", "value"),
    [
        ("run-now", {}, "due now", "held_due_at", None),
        ("reschedule", {"at": "2031-01-01T00:00Z"}, "rescheduled", "due_at",
         datetime(2031, 1, 1, tzinfo=UTC)),
        ("reprioritise", {"to_priority": 0}, "reprioritised", "priority", 0),
        ("move", {"to_queue": "slow"}, "moved", "queue", "slow"),
        ("disable", {}, "disabled", "enabled", False),
    ],
)  # fmt: skip
def test_the_rest_is_done_with_what_the_first_stage_was_told(
    engine: Engine, action: str, words: dict[str, Any], answer: str, column: str, value: Any
) -> None:
    ids = make(engine, 5, delay="1h")
    token = start_bulk(engine, action, name="t", by="ann", why="an outage", **words)

    first = some(run_bulk(engine, token, first=2))
    left = some(foresee_rest(engine, token))
    rest = some(run_bulk(engine, token))

    assert (first.ids, rest.ids) == (ids[:2], ids[2:])
    assert (first.answers, rest.answers) == ({answer: 2}, {answer: 3})
    assert left.counts == {("t", "PENDING"): 3}
    assert [getattr(row, column) for row in rows(engine, ids)] == [value] * 5
    opening, *_ = do(engine, audit.steps, token)
    assert opening.what.get("why") == "an outage"


def test_all_of_a_bulk_have_one_date_though_its_steps_are_made_later(engine: Engine) -> None:
    ids = make(engine, 2)
    token = start_bulk(engine, "reschedule", name="t", delay="2h")
    run_bulk(engine, token, first=1)
    run_bulk(engine, token)
    first, second = rows(engine, ids)
    opening, *_ = do(engine, audit.steps, token)
    assert first.due_at == second.due_at == opening.at + timedelta(hours=2)


def test_what_is_held_is_not_meant_by_a_hold_and_nothing_else_by_a_release(engine: Engine) -> None:
    ids = make(engine, 3)
    bulk(engine, "hold", ids=ids[:2])
    assert foresee_bulk(engine, "hold", name="t").counts.total() == 1
    assert foresee_bulk(engine, "release", name="t").counts.total() == 2
    assert bulk(engine, "hold", name="t").ids == ids[2:]
    assert bulk(engine, "release", name="t").ids == ids


def test_what_was_so_already_is_counted_and_is_not_said_to_be_changed(engine: Engine) -> None:
    due, later = *make(engine, 1), *make(engine, 1, delay="1h")
    done = bulk(engine, "run-now", ids=[due, later])
    assert (done.ids, done.answers) == ([later], {"due now": 1, "unchanged": 1})


def test_retrying_means_what_has_run_and_waits_for_its_next_attempt(engine: Engine) -> None:
    make(engine, 1, delay="1h")
    with engine.begin() as connection:
        claimed_task(connection)
        failed_task(connection)
    retries = retrying_task(engine)
    assert bulk(engine, "run-now", queue="default", retrying=True).ids == [retries]


def test_what_runs_by_the_time_of_the_lock_is_left_as_it_is(engine: Engine) -> None:
    (task_id,) = make(engine, 1)
    own = engine.execution_options()
    with once_after(own, "AS fits FROM", lambda: do(engine, claimed_task, task_id)):
        done = bulk(own, "hold", name="t")
    assert done.number == 0
    assert rows(engine, [task_id])[0].held_due_at is None


def test_a_release_at_a_rate_lets_go_of_them_one_after_the_other(engine: Engine) -> None:
    ids = make(engine, 5)
    bulk(engine, "hold", ids=ids)
    token = start_bulk(engine, "release", name="t", rate="1/10s", why="the bank is back")
    first, rest = run_bulk(engine, token, first=2), run_bulk(engine, token)
    assert first is not None
    assert rest is not None
    assert (first.ids, first.answers) == (ids[:2], {"released": 2})
    assert (rest.ids, rest.answers) == (ids[2:], {"released": 3})
    assert set(gaps(engine, ids)) == {timedelta(seconds=10)}


def test_a_killed_one_goes_on_at_its_rate_behind_its_last_step(engine: Engine) -> None:
    ids = make(engine, STEP + 5, delay="100d")
    token = start_bulk(engine, "run-now", name="t", rate="10/1s")
    killed_at_its_second_step(engine, token)
    done = some(run_bulk(engine, token))
    assert done.ids == ids[STEP:]
    assert gaps(engine, ids) == [timedelta(seconds=0.1)] * (len(ids) - 1)


def test_a_rate_goes_on_behind_a_stage_that_changed_nothing(engine: Engine) -> None:
    ids = make(engine, 2, delay="1d")
    make(engine, 1)
    last = make(engine, 1, delay="1d")
    token = start_bulk(engine, "run-now", name="t", rate="1/1h")
    for _ in range(4):
        run_bulk(engine, token, first=1)
    assert gaps(engine, [*ids, *last]) == [timedelta(hours=1)] * 2


def test_a_task_that_waits_for_its_retry_is_held_and_released(engine: Engine) -> None:
    task_id = retrying_task(engine)
    (before,) = rows(engine, [task_id])
    bulk(engine, "hold", ids=[task_id])
    bulk(engine, "release", ids=[task_id])
    (after,) = rows(engine, [task_id])
    assert (after.due_at, after.attempt, after.failures) == (before.due_at, 1, 1)


@pytest.mark.parametrize(
    ("action", "words", "problem"),
    [
        ("hold", {}, "This selects every task"),
        ("hold", {"name": "t", "pool": "error"}, "Only tasks of the pool pending"),
        ("hold", {"name": "t", "state": "RUNNING"}, "A running task does not wait"),
        ("hold", {"name": "t", "rate": "1/1s"}, "hold takes no rate"),
        ("cancel", {"name": "t", "to_queue": "q"}, "cancel takes no to_queue"),
        ("requeue", {"name": "t", "retrying": True}, "Only tasks of the pool pending"),
        ("reschedule", {"name": "t"}, "reschedule needs at or delay"),
        ("reschedule", {"name": "t", "at": "2031-01-01T00:00Z", "delay": 1}, "Give one"),
        ("run-now", {"name": "t", "rate": "many"}, "options.rate is not a rate"),
        ("reschedule", {"name": "t", "at": "tomorrow"}, "options.at is 'tomorrow'"),
        ("run-now", {"retrying": False}, "This selects every task"),
    ],
)
def test_nonsense_is_refused(engine: Engine, action: str, words: dict, problem: str) -> None:
    with pytest.raises(InvalidSelectionError, match=problem):
        start_bulk(engine, action, **words)


def test_a_held_task_reads_as_held(engine: Engine) -> None:
    task_id = do(engine, pending_task)
    bulk(engine, "hold", ids=[task_id])
    task = some(do(engine, get, task_id))
    assert task.held
