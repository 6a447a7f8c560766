"""Verbs on tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session

from tasks_app import (
    Changed,
    Flow,
    InvalidSelectionError,
    InvalidTaskError,
    NewTask,
    TaskBuffer,
    UniqueKeyTakenError,
    acreate_task,
    acreate_tasks,
    backfill_schedule,
    cancel_task,
    cancel_tasks,
    change_schedule,
    create_flow,
    create_schedule,
    create_task,
    create_tasks,
    disable_schedule,
    disable_task,
    enable_schedule,
    enable_task,
    explain_task,
    hold_task,
    move_task,
    pause_queue,
    release_task,
    remove_schedule,
    reprioritise_task,
    requeue_task,
    reschedule_task,
    resume_queue,
    run_bulk,
    run_task_now,
    start_bulk,
)
from tasks_app.domain.tasks.error_text import fingerprint_of
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.operations import audit
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.browse import get
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.runtime.api.bulk import foresee_bulk, requeue_errors
from tasks_app.runtime.api.errors import list_errors, mark_error_known, mark_error_unknown
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.retention import Retention
from tasks_app.runtime.worker.control_inbox import ControlCommand, Do, Mailbox
from tasks_app.runtime.worker.housekeeper import ControlCommands
from tests.factory import claimed_task, do, ending, pending_task, run_sql
from tests.runtime.api.acts import failed_task, make, pools
from tests.runtime.bench import Bench, own_maintainer

Verb = Callable[..., Changed]
VERBS: list[tuple[Verb, dict[str, Any], str, dict[str, Any]]] = [
    (run_task_now, {}, "due now", {}),
    (reschedule_task, {"delay": "2h"}, "rescheduled", {"delay": "2h"}),
    (reprioritise_task, {"to_priority": 0}, "reprioritised", {"to_priority": 0}),
    (move_task, {"to_queue": "slow"}, "moved", {"to_queue": "slow"}),
    (hold_task, {}, "held", {}),
    (disable_task, {}, "disabled", {}),
]
each_verb = pytest.mark.parametrize(
    ("verb", "words", "answer", "kept"), VERBS, ids=[verb.__name__ for verb, *_ in VERBS]
)


@each_verb
def test_it_is_noted_who_did_what_and_why(
    connection: Connection, verb: Verb, words: dict, answer: str, kept: dict
) -> None:
    task_id = pending_task(connection, delay="1h")
    assert verb(connection, task_id, by="anna", why="an outage", **words) is Changed.CHANGED
    (line,) = audit.find(connection)
    assert (line.who, line.ids, line.answers) == ("anna", [task_id], {answer: 1})
    assert line.what == {**kept, "why": "an outage"}
    assert line.action == verb.__name__.removesuffix("_task").replace("run_task_now", "run-now")


@each_verb
def test_what_does_not_wait_is_said_and_not_noted(
    connection: Connection, verb: Verb, words: dict, answer: str, kept: dict
) -> None:
    running, over = claimed_task(connection).task_id, pending_task(connection)
    cancel(connection, over)
    assert verb(connection, running, **words) is Changed.RUNNING
    assert verb(connection, over, **words) is Changed.ALREADY_OVER
    assert verb(connection, 10**9, **words) is Changed.NOT_FOUND
    assert audit.find(connection) == []


def test_a_step_that_waits_for_others_is_not_run_now(connection: Connection) -> None:
    flow = Flow("order")
    flow.step("ship", "t", needs=flow.step("pay", "t"))
    ids = create_flow(connection, flow).task_ids
    assert run_task_now(connection, ids["ship"]) is Changed.WAITS
    assert run_task_now(connection, ids["pay"]) is Changed.UNCHANGED
    assert hold_task(connection, ids["ship"]) is Changed.CHANGED
    assert run_task_now(connection, ids["ship"]) is Changed.WAITS
    (line,) = audit.find(connection)
    assert line.action == "hold"


def test_what_is_so_already_is_unchanged(connection: Connection) -> None:
    task_id = pending_task(connection)
    assert run_task_now(connection, task_id) is Changed.UNCHANGED
    assert release_task(connection, task_id) is Changed.UNCHANGED
    assert enable_task(connection, task_id) is Changed.UNCHANGED
    assert move_task(connection, task_id, "default") is Changed.UNCHANGED


@pytest.mark.parametrize(
    ("verb", "words", "problem"),
    [
        (reschedule_task, {}, "reschedule needs at or delay"),
        (reschedule_task, {"delay": "soon"}, "options.delay is 'soon'"),
        (reschedule_task, {"at": "2030-01-01T00:00"}, "options.at has no time zone"),
        (reprioritise_task, {"to_priority": 10}, "options.to_priority is 10"),
        (move_task, {"to_queue": "no queue"}, "options.queue is 'no queue'"),
    ],
)
def test_nonsense_is_refused(connection: Connection, verb: Verb, words: dict, problem: str) -> None:
    task_id = pending_task(connection)
    with pytest.raises(InvalidSelectionError, match=problem):
        verb(connection, task_id, **words)
    assert audit.find(connection) == []


def test_explain_says_that_it_is_held_by_whom_and_why(connection: Connection) -> None:
    task_id = pending_task(connection, delay="1h")
    date = get(connection, task_id).due_at  # type: ignore[union-attr]
    hold_task(connection, task_id, by="anna", why="the bank asks")
    said = explain_task(connection, task_id)
    first = said.findings[0]
    assert first.fact.startswith("It was put on hold just now (")
    assert first.fact.endswith(") by anna: the bank asks")
    assert first.advice == f"To release it: tasks-app release {task_id}"
    assert (said.facts["held"], said.facts["due_at"]) == (True, date)
    assert "9899-01-01" not in f"{said.findings}{said.facts}"


def test_explain_knows_who_held_it_in_a_bulk(engine: Engine) -> None:
    (task_id,) = make(engine, 1)
    token = start_bulk(engine, "hold", name="t", by="anna", why="the bank asks")
    run_bulk(engine, token, by="bob")
    fact = do(engine, explain_task, task_id).findings[0].fact
    assert fact.endswith(") by bob: the bank asks")


def test_explain_says_held_though_the_audit_was_cleared(connection: Connection) -> None:
    task_id = pending_task(connection)
    hold_task(connection, task_id)
    connection.exec_driver_sql("DELETE FROM task_audit")
    assert explain_task(connection, task_id).findings[0].fact == "It is on hold"


def test_a_disabled_one_on_hold_names_no_date_and_how_to_enable_it(connection: Connection) -> None:
    task_id = pending_task(connection)
    disable_task(connection, task_id)
    hold_task(connection, task_id)
    _, disabled, *_ = explain_task(connection, task_id).findings
    assert disabled.fact == "It is disabled: it is skipped when it is due"
    assert disabled.advice == f"To run it anyway: tasks-app enable {task_id}"


START = datetime(2026, 1, 1, tzinfo=UTC)


def scheduled(connection: Connection) -> str:
    create_schedule(connection, "s", "t", every="1h")
    return "s"


VERBS_OF_AUDIT: dict[str, Callable[[Connection, str], object]] = {
    "pause": lambda c, by: pause_queue(c, "q", "why", by=by),
    "resume": lambda c, by: (pause_queue(c, "q"), resume_queue(c, "q", by=by)),
    "cancel": lambda c, by: cancel_task(c, pending_task(c), by=by),
    "requeue": lambda c, by: (
        cancel_task(c, task_id := pending_task(c)),
        requeue_task(c, task_id, by=by),
    ),
    "schedule add": lambda c, by: create_schedule(c, "s", "t", every=60, by=by),
    "schedule change": lambda c, by: change_schedule(c, scheduled(c), every=60, by=by),
    "schedule enable": lambda c, by: enable_schedule(c, scheduled(c), by=by),
    "schedule disable": lambda c, by: disable_schedule(c, scheduled(c), by=by),
    "schedule remove": lambda c, by: remove_schedule(c, scheduled(c), by=by),
    "schedule backfill": lambda c, by: backfill_schedule(
        c, scheduled(c), START, START + timedelta(hours=3), by=by
    ),
}


@pytest.mark.parametrize("action", VERBS_OF_AUDIT)
def test_who_did_what_when(connection: Connection, action: str) -> None:
    VERBS_OF_AUDIT[action](connection, "ann")
    line, *_ = audit.find(connection)
    now, role = connection.exec_driver_sql("SELECT statement_timestamp(), current_user").one()
    assert (line.action, line.who, line.role) == (action, "ann", role)
    assert timedelta(0) <= now - line.at < timedelta(minutes=1)
    assert len(audit.find(connection, action=action)) == 1


def test_what_it_was_done_to(connection: Connection) -> None:
    waiting, running = pending_task(connection), claimed_task(connection).task_id
    cancel_task(connection, waiting)
    cancel_tasks(connection, name="t")
    pause_queue(connection, "q", "a leak")
    paused, many, one = audit.find(connection)
    assert (one.ids, one.number, one.answers) == ([waiting], 1, {"cancelled": 1})
    assert (many.ids, many.what) == ([running], {"name": "t"})
    assert many.answers == {"cancelled": 0, "requested": 1}
    assert paused.what == {"queue": "q", "reason": "a leak"}


def test_of_very_many_a_sample_of_the_ids_is_kept(connection: Connection) -> None:
    for _ in range(audit.MOST_IDS + 1):
        pending_task(connection)
    cancel_tasks(connection, name="t")
    (line,) = audit.find(connection)
    assert (line.number, len(line.ids)) == (audit.MOST_IDS + 1, audit.MOST_IDS)


def test_what_did_nothing_leaves_no_line(connection: Connection) -> None:
    cancel_task(connection, 10**9)
    requeue_task(connection, pending_task(connection))
    cancel_tasks(connection, name="nobody")
    resume_queue(connection, "q")
    pause_queue(connection, "q")
    pause_queue(connection, "q")
    enable_schedule(connection, "nobody")
    assert [line.action for line in audit.find(connection)] == ["pause"]


def test_a_line_is_gone_with_what_was_rolled_back(engine: Engine) -> None:
    with engine.connect() as connection:
        pause_queue(connection, "q")
        connection.rollback()
        assert audit.find(connection) == []


def test_remote_control_is_noted(bench: Bench, tmp_path: Any) -> None:
    task_id, running = bench.create(), bench.do(claimed_task).task_id
    mailbox = Mailbox.beside(tmp_path / "slots")
    for command in (
        ControlCommand(Do.REVOKE, ids=(int(task_id),)),
        ControlCommand(Do.CANCEL, ids=(int(running),), kill_after_s=5),
        ControlCommand(Do.PAUSE, queue="q"),
    ):
        mailbox.leave(command)

    database = Database(bench.url)
    ControlCommands(database, mailbox).carry_out()
    database.dispose()

    with bench.engine.connect() as connection:
        lines = audit.find(connection)
    assert {(line.action, line.who) for line in lines} == {
        ("cancel", "remote control"),
        ("pause", "remote control"),
    }
    assert [line.what for line in lines if line.ids == [running]] == [{"kill_after": "5s"}]


def test_a_prune_is_noted_before_and_after(bench: Bench) -> None:
    database = Database(bench.url)
    Retention(bench.settings(keep_errors="7d"), database).run_for("ann")
    database.dispose()
    after, before = bench.do(audit.find)
    ages = {"completed": "30d", "errors": "7d", "batches": "365d"}
    assert (before.action, before.what) == ("prune", ages)
    assert (after.action, after.who, after.number) == ("pruned", "ann", 0)


CAUSE = Cause("shop.Away", "nobody")
HEX = fingerprint_of(CAUSE).hex()


def fail(engine: Engine, number: int) -> list[int]:
    with engine.begin() as connection:
        failed_task(connection, "Other", "m")
        return [failed_task(connection, "shop.Away", "nobody") for _ in range(number)]


def worker(engine: Engine, event: Event, cause: Cause | None = None):
    """End what waits, instead of a pause."""

    def work(_: float) -> None:
        with engine.begin() as connection:
            for task_id in pending(engine):
                task = claimed_task(connection, task_id)
                settle_one(connection, ending(task, event, cause=cause, failures=1))

    return work


def pending(engine: Engine) -> list[int]:
    due = "state = 'PENDING' AND due_at <= now() AND failures = 0"
    return run_sql(engine, f"SELECT array_agg(id) FROM task_pending WHERE {due}") or []


def test_a_bulk_is_chosen_by_fingerprint(engine: Engine) -> None:
    ids = fail(engine, 3)
    assert foresee_bulk(engine, "requeue", fingerprint=HEX).counts.total() == 3
    token = start_bulk(engine, "requeue", fingerprint=HEX.upper())
    assert run_bulk(engine, token, first=2).ids == ids[:2]
    assert run_bulk(engine, token).ids == ids[2:]


@pytest.mark.parametrize("words", [{"fingerprint": "12"}, {"fingerprint": HEX, "pool": "pending"}])
def test_a_wrong_selection_by_fingerprint_is_refused(engine: Engine, words: dict) -> None:
    with pytest.raises(InvalidSelectionError, match="fingerprint"):
        start_bulk(engine, "cancel" if "pool" in words else "requeue", **words)


def test_stages_follow_each_other_while_all_goes_well(engine: Engine) -> None:
    ids = fail(engine, 6)
    stages = list(
        requeue_errors(engine, HEX, (1, 2, None), by="ann", pause=worker(engine, Event.SUCCEED))
    )
    assert [stage.done.ids for stage in stages] == [ids[:1], ids[1:3], ids[3:]]
    assert {(stage.again, stage.going) for stage in stages} == {(0, 0)}
    assert pools(engine, ids) == {"completed SUCCEEDED": 3, "pending PENDING": 3}
    with engine.connect() as connection:
        assert {line.who for line in audit.steps(connection, stages[0].done.token)} == {"ann"}


@pytest.mark.parametrize("event", [Event.FAIL, Event.RETRY])
def test_no_stage_follows_when_the_same_error_comes_again(engine: Engine, event: Event) -> None:
    ids = fail(engine, 6)
    (stage,) = requeue_errors(engine, HEX, (2, None), pause=worker(engine, event, CAUSE))
    assert (stage.done.ids, stage.again, stage.going) == (ids[:2], 2, 0)
    assert run_bulk(engine, stage.done.token).ids[-4:] == ids[2:]


def test_another_error_does_not_stop_the_stages(engine: Engine) -> None:
    fail(engine, 3)
    stages = list(
        requeue_errors(
            engine, HEX, (1, None), pause=worker(engine, Event.FAIL, Cause("Another", "m"))
        )
    )
    assert [len(stage.done.ids) for stage in stages] == [1, 2]


def test_no_stage_follows_when_the_patience_is_over(engine: Engine) -> None:
    ids = fail(engine, 3)
    (stage,) = requeue_errors(engine, HEX, (1, None), patience=timedelta(0))
    assert (stage.done.ids, stage.again, stage.going) == (ids[:1], 0, 1)


def test_marks_are_noted_in_the_audit(engine: Engine) -> None:
    fail(engine, 1)
    with engine.begin() as connection:
        assert not mark_error_known(connection, "00" * 8, by="ann")
        assert mark_error_known(connection, HEX, by="ann", until=timedelta(days=1), note="n")
        found = list_errors(connection, fingerprint=HEX)[0]
        assert mark_error_unknown(connection, HEX, by="bob")
        assert not mark_error_unknown(connection, HEX)
        with pytest.raises(InvalidSelectionError, match="not a fingerprint"):
            mark_error_known(connection, "x", by="ann")
        told = [
            (line.who, line.action, line.what["fingerprint"]) for line in audit.find(connection)
        ]

    assert (found.known_by, found.note) == ("ann", "n")
    assert found.known_until is not None
    assert told == [("bob", "error unknown", HEX), ("ann", "error known", HEX)]


SCOPES = ("queued", "until_terminal", "for_period 1h", "forever")
NUMBER = "SELECT count(*) FROM task_pending"


@pytest.fixture
def url(bench: Bench) -> str:
    return bench.plain_url


@pytest.fixture(params=[False, True], ids=["transaction", "autocommit"])
def raw(url: str, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=request.param) as connection:
        yield connection


def keyed(scope: str, key: str = "k", policy: str = "return_existing") -> NewTask:
    return NewTask("t", None, {"unique_key": key, "unique_scope": scope, "on_conflict": policy})


@pytest.mark.parametrize("scope", SCOPES)
def test_a_connection_of_psycopg(bench: Bench, raw: psycopg.Connection, scope: str) -> None:
    first = create_task(raw, "t", **keyed(scope).options)
    told = create_tasks(raw, [keyed(scope), NewTask("t"), keyed(scope, policy="reschedule")])
    with pytest.raises(UniqueKeyTakenError) as taken:
        create_tasks(raw, [keyed(scope, "new"), keyed(scope, policy="raise")])
    raw.commit()
    assert [i.outcome for i in told] == ["existing", "created", "rescheduled"]
    assert told[0] == told[2] == first == taken.value.holder
    assert bench.sql(NUMBER) == 2


@pytest.mark.parametrize("scope", SCOPES)
def test_a_pipeline_of_psycopg(bench: Bench, url: str, scope: str) -> None:
    with psycopg.connect(url) as connection, connection.pipeline():
        first = create_task(connection, "t", **keyed(scope).options)
        with pytest.raises(UniqueKeyTakenError):
            create_tasks(connection, [keyed(scope, "new"), keyed(scope, policy="raise")])
        assert create_tasks(connection, [keyed(scope), keyed(scope, "n")])[0] == first
    assert bench.sql(NUMBER) == 2


@pytest.mark.parametrize("scope", SCOPES)
def test_an_async_connection_of_psycopg(bench: Bench, url: str, scope: str) -> None:
    async def act() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            first = await acreate_task(connection, "t", **keyed(scope).options)
            again = await acreate_tasks(connection, [keyed(scope), keyed(scope, "n")])
            assert (again[0], [i.created for i in again]) == (first, [False, True])
            with pytest.raises(UniqueKeyTakenError):
                await acreate_tasks(connection, [keyed(scope, "new"), keyed(scope, "n", "raise")])

    asyncio.run(act())
    assert bench.sql(NUMBER) == 2


@pytest.mark.parametrize("scope", SCOPES)
def test_sessions_sync_and_async(bench: Bench, scope: str) -> None:
    async def act() -> None:
        async with bench.async_session() as session:
            assert await acreate_task(session, "t", **keyed(scope).options) == first
            with pytest.raises(UniqueKeyTakenError):
                await acreate_tasks(session, [keyed(scope, "n"), keyed(scope, policy="raise")])

    with Session(bench.engine) as session:
        first = create_task(session, "t", **keyed(scope).options)
        session.commit()
    asyncio.run(act())
    assert bench.sql(NUMBER) == 1


def test_a_buffer_takes_all_but_raise_which_nobody_would_hear(bench: Bench) -> None:
    with TaskBuffer(bench.engine) as buffer:
        for scope in SCOPES * 2:
            buffer.create_task("t", **keyed(scope, scope).options)
        with pytest.raises(InvalidTaskError, match="on_conflict"):
            buffer.create_task("t", **keyed("forever", policy="raise").options)
    assert bench.sql(NUMBER) == len(SCOPES)


@pytest.mark.usefixtures("maintenance_due")
def test_maintenance_prunes_keys_a_little_at_a_time(bench: Bench) -> None:
    """Who maintains may have to scan; the rest goes at the next looks, not an hour later."""
    bench.sql(
        "INSERT INTO task_key (name, unique_key, task_id, scope)"
        " SELECT 't', i::text, 0, 'queued' FROM generate_series(1, 5) AS i"
    )
    mine = own_maintainer(bench, prune_for_s=0, look_every_s=0, rows_at_once=2)

    left = []
    for _ in range(3):
        mine.run_if_due()
        left.append(bench.sql("SELECT count(*) FROM task_key"))

    assert left == [3, 1, 0]


def test_maintenance_prunes(bench: Bench) -> None:
    with Session(bench.engine) as session:
        for scope in SCOPES:
            create_task(session, "t", **keyed(scope, scope).options)
        session.execute(text("UPDATE task_key SET until = 'epoch' WHERE until IS NOT NULL"))
        session.execute(text("DELETE FROM task_pending"))
        session.commit()
    own_maintainer(bench).run_once()
    assert bench.sql("SELECT array_agg(unique_key) FROM task_key") == ["forever"]
