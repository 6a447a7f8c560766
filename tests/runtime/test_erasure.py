"""What was erased is in no table any more; rows, outcomes and other tasks stay as they were."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app import (
    Group,
    NewTask,
    TaskContext,
    create_group,
    create_schedule,
    hold_task,
    requeue_task,
    run_bulk,
    start_bulk,
)
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.large_values.store import LargePayload
from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.pool.operations import erase as pool_erase
from tasks_app.pool.operations.audit import note
from tasks_app.pool.operations.erase import USER_VALUES, Erased
from tasks_app.pool.tables import TABLES
from tasks_app.pool.tasks.large_values import write_value
from tasks_app.pool.tasks.run_records import LinesOfRun, keep_lines, read_lines
from tasks_app.runtime.erasure import erase, preview_erasure
from tests.clock import until
from tests.runtime.bench import Bench
from tests.runtime.encryption.test_runs import OLD

CANARY = "canary-4711"


def dumped(bench: Bench) -> str:
    with bench.engine.connect() as connection:
        return "\n".join(
            f"{table}: {row}"
            for table in TABLES
            for row in connection.execute(
                text(f"SELECT to_jsonb(t)::text FROM {table} t")
            ).scalars()
        )


def ended(bench: Bench, **options: Any) -> list[int]:
    """A task that succeeded after a failure, and one that failed, with the canary everywhere."""

    @bench.handler("t", max_attempts=2, retry="fixed 1ms")
    def run(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, Any]:
        ctx.progress(0.5, payload["card"])
        ctx.checkpoint = {"card": payload["card"]}
        ctx.set_sub_status(f"asks for {payload['card']}")
        ctx.commit()
        ctx.log.warning("card %s", payload["card"])
        if ctx.attempt == 1 or payload.get("bad"):
            raise ValueError(f"card {payload['card']} refused")
        return {"card": payload["card"]}

    payload = {"card": CANARY}
    ids = [
        bench.create(payload=payload, headers={"note": CANARY, "subject": "anna"}, **options),
        bench.create(payload={**payload, "bad": 1}, headers={"subject": "anna"}, **options),
    ]
    bench.drain(log_lines=10, transitions="all")
    return ids


@pytest.mark.test_all
@pytest.mark.parametrize("by", ["biz_key", "subject"])
def test_nothing_is_left_of_what_they_held(bench: Bench, by: str) -> None:
    ids = ended(bench, biz_key="customer:7")
    assert dumped(bench).count(CANARY) > 8
    states = bench.states(ids)

    keys, subject = (["customer:7"], None) if by == "biz_key" else ([], "anna")
    receipt = erase(bench.engine, keys, subject, by="bob", why="asked for")

    assert CANARY not in dumped(bench)
    assert bench.states(ids) == states == ["SUCCEEDED", "FAILED"]
    done, failed = map(bench.task, ids)
    assert set(done.payload) == set(done.result) == set(failed.payload) == {"$erased"}
    assert failed.error == "erased"
    assert done.sub_status == failed.sub_status == "erased"
    assert (done.attempt, done.biz_key) == (2, "customer:7")
    assert (receipt.tasks, receipt.complete) == (2, True)
    assert receipt.rows["task_completed"] == receipt.rows["task_error"] == 1
    assert receipt.rows["task_attempt"] == 3
    assert receipt.rows["task_log"] == 4
    line = bench.sql("SELECT to_jsonb(a)::text FROM task_audit a WHERE action = 'erase'")
    assert '"who": "bob"' in line
    assert "asked for" in line
    assert "anna" not in line
    assert subject is None or receipt.subject_sha256 == sha256(b"anna").hexdigest()


@pytest.mark.test_all
def test_other_tasks_stay(bench: Bench) -> None:
    (other, _) = ended(bench, biz_key="customer:8")
    before = bench.task(other)
    ended(bench, biz_key="customer:7")
    erase(bench.engine, ["customer:7"], None)
    assert bench.task(other) == before
    assert len(bench.attempts(other)) == 1
    assert bench.attempts(other)[0].message == f"card {CANARY} refused"


def test_a_preview_writes_nothing(bench: Bench) -> None:
    ended(bench, biz_key="customer:7")
    before = dumped(bench)
    receipt = preview_erasure(bench.engine, ["customer:7"], None)
    assert (receipt.tasks, receipt.audit) == (2, None)
    assert dumped(bench) == before


def test_what_is_still_to_run_is_left_or_cancelled_first(bench: Bench) -> None:
    task_id = bench.create(payload={"card": CANARY}, biz_key="customer:7")
    left = erase(bench.engine, ["customer:7"], None)
    assert (left.waiting, left.complete) == (1, False)
    assert bench.task(task_id).payload == {"card": CANARY}
    done = erase(bench.engine, ["customer:7"], None, cancel=True)
    assert (done.cancelled, done.tasks, done.complete) == (1, 1, True)
    assert bench.state(task_id) == "CANCELLED"
    assert CANARY not in dumped(bench)


def test_what_runs_is_told_and_left(bench: Bench) -> None:
    runs, go_on = bench.event(), bench.event()

    @bench.handler("t")
    def run(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, Any]:
        runs.set()
        go_on.wait(20)
        return payload

    bench.create(payload={"card": CANARY}, biz_key="customer:7")
    bench.beside(bench.work().run)
    assert runs.wait(20)

    left = erase(bench.engine, ["customer:7"], None, cancel=True)
    assert (left.running, left.complete) == (1, False)
    go_on.set()
    until(lambda: bench.sql("SELECT count(*) FROM task_completed") == 1)
    done = erase(bench.engine, ["customer:7"], None)

    assert (done.tasks, done.complete) == (1, True)
    assert CANARY not in dumped(bench)


@pytest.mark.test_all
def test_a_second_time_takes_what_has_come_since(bench: Bench) -> None:
    ids = ended(bench, biz_key="customer:7")
    erase(bench.engine, ["customer:7"], None)
    bench.sql(f'UPDATE task_completed SET result = \'{{"card": "{CANARY}"}}\' RETURNING id')
    again = erase(bench.engine, ["customer:7"], None)
    assert (again.tasks, again.complete) == (2, True)
    assert CANARY not in dumped(bench)
    assert bench.states(ids) == ["SUCCEEDED", "FAILED"]


@pytest.mark.test_all
@pytest.mark.parametrize(
    "options", [{}, {"encryption_keys": OLD, "encrypted_tasks": "t"}], ids=["plain", "encrypted"]
)
def test_an_erased_task_requeued_reaches_no_handler(bench: Bench, options: dict[str, str]) -> None:
    (task_id, _) = ended(bench, biz_key="customer:7")
    erase(bench.engine, ["customer:7"], None)
    bench.do(requeue_task, task_id)
    bench.drain(**options)
    assert "The payload was erased" in bench.error(task_id)


def test_what_operators_typed_about_it_goes_but_not_of_a_bulk_that_goes_on(bench: Bench) -> None:
    @bench.handler("t")
    def run(ctx: TaskContext, payload: dict[str, Any]) -> None: ...

    bench.create(payload={"card": 1}, biz_key="customer:7", delay="1h")
    patch = {"card": CANARY}
    token = start_bulk(bench.engine, "edit", biz_key="customer:7", patch=patch)

    left = erase(bench.engine, ["customer:7"], None, cancel=True)
    assert (left.open_bulks, left.complete) == ((token,), False)
    assert CANARY in bench.sql("SELECT string_agg(patch::text, '') FROM task_audit")
    run_bulk(bench.engine, token, registry=bench.registry)
    done = erase(bench.engine, ["customer:7"], None)

    assert done.complete
    assert done.rows["task_audit"] == 1
    assert CANARY not in dumped(bench)


def test_the_audit_loses_operators_reasons(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOG, "level", Logged("all"))
    task_id = bench.create(payload={}, biz_key="customer:7")
    bench.do(hold_task, task_id, by="ann", why=CANARY)
    assert bench.sql("SELECT why FROM task_transition WHERE event = 'hold'") == CANARY
    receipt = erase(bench.engine, ["customer:7"], None, cancel=True)
    assert bench.sql("SELECT why FROM task_transition WHERE event = 'hold'") == "erased"
    assert receipt.rows["task_transition"] == 1
    assert CANARY not in dumped(bench)


def test_a_task_that_is_requeued_meanwhile_is_not_touched(bench: Bench) -> None:
    (task_id, _) = ended(bench, biz_key="customer:7")
    meant = bench.do(pool_erase.find, pool_erase.ErasureKeys(["customer:7"]))
    bench.do(requeue_task, task_id)
    changed = bench.do(pool_erase.erase_rows, meant.over)
    assert changed == {"task_completed": [], "task_error": meant.over[1:]}
    assert bench.task(task_id).payload == {"card": CANARY}


WHOSE = {"biz_key": "customer:7", "headers": {"subject": "anna"}}


def in_sql(value: object) -> str:
    return f"'{json.dumps(value)}'"


STANDS = in_sql({"$erased": CANARY, "note": CANARY})
"""A user may have such a key."""
ABOUT_HER = in_sql({"subject": "anna", "note": CANARY})
FILLED = {
    "text": f"'{CANARY}'",
    "jsonb": STANDS,
    "ARRAY": f"ARRAY['{CANARY}']",
    "task_worker.running": f"""(
        SELECT jsonb_agg(jsonb_build_object('id', c.id, 'note', '{CANARY}'))
        FROM task_all c WHERE c.biz_key = 'customer:7')""",
    "task_log.lines": in_sql([["2026-01-01T00:00:00Z", "INFO", CANARY]]),
    "task_audit.what": in_sql({"why": CANARY, "error_text": CANARY}),
    "task_group.then_row": f"jsonb_set(then_row, '{{payload}}', {STANDS})",
    "task_group.on_failure": f"jsonb_set(on_failure, '{{headers}}', {ABOUT_HER})",
}
"""By column, or by its type."""


def grouped(bench: Bench) -> Group:
    """A group that calls a task of somebody, whichever way it ends."""
    bench.handler("member")(lambda ctx, payload: None)
    with bench.engine.begin() as connection:
        then, failed = NewTask("t", {"card": CANARY}, **WHOSE), NewTask("t", {}, **WHOSE)
        return create_group(connection, [NewTask("member")], then=then, on_failure=failed)


@pytest.mark.test_all
@pytest.mark.parametrize("by", ["biz_key", "subject"])
def test_no_column_keeps_a_value_that_the_list_says_is_erased(bench: Bench, by: str) -> None:
    (done, failed) = ended(bench, biz_key="customer:7")
    grouped(bench)
    bench.drain()
    bench.sql("""
        INSERT INTO task_worker (owner, node, queues, handlers, running, started_at, seen_at)
            VALUES ('w', 'n', '{}', '{}', '[]', now(), now());
        INSERT INTO task_fingerprint (fingerprint, kind, message)
            SELECT DISTINCT fingerprint, '', '' FROM task_attempt;
        INSERT INTO task_alert (key, fact, advice)
            SELECT 'new-error:' || encode(fingerprint, 'hex'), '', '' FROM task_fingerprint;
        INSERT INTO task_group (id, total, flow, when_failed) VALUES (-1, 1, 'f', 'wait')""")
    step = (
        "INSERT INTO task_flow_step (flow_id, step, task_id, task_name) VALUES (-1, 's', :id, 't')"
    )
    bench.sql(step, id=done)
    bench.sql("INSERT INTO task_event (key, payload, sent_at) VALUES ('k', '{}', now())")
    bench.sql("INSERT INTO task_event_wait (task_id, key) VALUES (:id, 'k')", id=done)
    bench.sql("INSERT INTO task_step (task_id, name, result) VALUES (:id, 's', '1')", id=done)
    with bench.engine.begin() as connection:
        note(connection, "edit", {"why": "-"}, patch={"-": 1}, ids=[done, failed])
        write_value(connection, LargePayload.of("{}", encrypted=False), failed, "payload")
    bench.sql("UPDATE task_completed SET biz_key = 'customer:7'")  # the member's, too
    erased = [v for v in USER_VALUES if v.erased not in (Erased.LEFT, Erased.KEPT)]
    for value in erased:
        kind = bench.sql(
            "SELECT data_type FROM information_schema.columns "
            "WHERE table_name = :table AND column_name = :column",
            table=value.table,
            column=value.column,
        )
        fill = FILLED.get(value.name, FILLED.get(kind))
        bench.sql(f"UPDATE {value.table} SET {value.column} = {fill}")
        found = f"SELECT count(*) FROM {value.table} WHERE {value.column}::text LIKE '%{CANARY}%'"
        assert bench.sql(found) > 0, value.name
    if by == "subject":  # which the headers say
        for pool in ("task_completed", "task_error"):
            bench.sql(f"UPDATE {pool} SET headers = {ABOUT_HER}")

    keys, subject = (["customer:7"], None) if by == "biz_key" else ([], "anna")
    receipt = erase(bench.engine, keys, subject)

    assert [line for line in dumped(bench).splitlines() if CANARY in line] == []
    assert receipt.complete


@pytest.mark.test_all
@pytest.mark.parametrize("by", ["biz_key", "subject"])
def test_a_callback_is_left_or_skipped_and_brings_nothing_back(bench: Bench, by: str) -> None:
    keys, subject = (["customer:7"], None) if by == "biz_key" else ([], "anna")
    group = grouped(bench)

    left = erase(bench.engine, keys, subject)
    assert (left.callbacks, left.complete) == (1, False)
    assert preview_erasure(bench.engine, keys, subject).callbacks == 1
    assert CANARY in bench.sql("SELECT then_row::text FROM task_group")
    done = erase(bench.engine, keys, subject, cancel=True)
    assert (done.callbacks, done.complete) == (0, True)
    bench.drain()

    assert bench.state(group.callback_id) == "SKIPPED"
    assert CANARY not in dumped(bench)


def test_a_group_that_a_cancelled_member_ends_calls_nobody(bench: Bench) -> None:
    with bench.engine.begin() as connection:
        calls = NewTask("t", {"card": CANARY}, **WHOSE)
        create_group(connection, [NewTask("t", **WHOSE)], on_failure=calls)
    done = erase(bench.engine, ["customer:7"], None, cancel=True)
    bench.drain()
    again = erase(bench.engine, ["customer:7"], None)
    assert (done.waiting, again.complete) == (1, True)
    assert CANARY not in dumped(bench)


def test_a_schedule_that_makes_such_tasks_is_named(bench: Bench) -> None:
    with bench.engine.begin() as connection:
        create_schedule(connection, "s", "t", {"card": CANARY}, every="1d", **WHOSE)
        create_schedule(connection, "other", "t", every="1d", biz_key="customer:8")
    for whose in ((["customer:7"], None), ([], "anna")):
        receipt = erase(bench.engine, *whose, cancel=True)
        assert (receipt.schedules, receipt.complete) == (("s",), False)


def test_log_lines_that_come_late_are_not_kept(bench: Bench) -> None:
    (task_id, _) = ended(bench, biz_key="customer:7")
    erase(bench.engine, ["customer:7"], None)
    with bench.engine.begin() as connection:
        lines = json.dumps([["2026-01-01T00:00:00Z", "INFO", CANARY]])
        keep_lines(connection, [LinesOfRun(task_id, attempt, lines, 0) for attempt in (1, 2)])
        assert read_lines(connection, task_id) == []
    assert CANARY not in dumped(bench)


def test_what_comes_back_meanwhile_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two statements of the erasure, as another process would."""
    (task_id, _) = ended(bench, biz_key="customer:7")
    find, tried = pool_erase.find, []

    def requeued(connection: Any, whose: Any) -> Any:
        meant = find(connection, whose)
        if not tried:
            bench.do(requeue_task, task_id)
        elif len(tried) == 1:
            bench.drain()  # and it ends once more, with all that it holds
        tried.append(meant)
        return meant

    monkeypatch.setattr(pool_erase, "find", requeued)
    receipt = erase(bench.engine, ["customer:7"], None)

    assert (receipt.tasks, receipt.running, receipt.complete) == (1, 1, False)
    assert erase(bench.engine, ["customer:7"], None).complete
    assert CANARY not in dumped(bench)


def test_a_payload_with_such_a_key_of_its_own_reaches_its_handler(bench: Bench) -> None:
    bench.handler("t")(lambda ctx, payload: bench.runs.append(payload))
    payload = {"$erased": CANARY, "beside it": 1}
    bench.run_one(payload=payload)
    assert bench.runs == [payload]
    with pytest.raises(InvalidTaskError, match=r"payload\.\$erased is the only key"):
        bench.create(payload={"$erased": CANARY})
