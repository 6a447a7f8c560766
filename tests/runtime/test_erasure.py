"""What was erased is in no table any more; rows, outcomes and other tasks stay as they were."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app import TaskContext, hold_task, requeue_task, run_bulk, start_bulk
from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.pool.operations import erase as pool_erase
from tasks_app.runtime.erasure import erase, preview_erasure
from tests.runtime.bench import Bench
from tests.runtime.encryption.test_runs import DUMPED, OLD
from tests.waiting import until

CANARY = "canary-4711"


def dumped(bench: Bench) -> str:
    with bench.engine.connect() as connection:
        return "\n".join(
            f"{table}: {row}"
            for table in DUMPED
            if table != "task_fingerprint"  # of the class and place
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
    assert failed.error == "ValueError: erased"
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
def test_a_second_time_changes_nothing(bench: Bench) -> None:
    ids = ended(bench, biz_key="customer:7")
    erase(bench.engine, ["customer:7"], None)
    before = [bench.task(task_id) for task_id in ids]

    again = erase(bench.engine, ["customer:7"], None)

    assert set(again.rows.values()) == {0}
    assert [bench.task(task_id) for task_id in ids] == before


@pytest.mark.test_all
@pytest.mark.parametrize(
    "options", [{}, {"encryption_keys": OLD, "encrypted_tasks": "t"}], ids=["plain", "encrypted"]
)
def test_an_erased_task_that_is_requeued_does_not_reach_its_handler(
    bench: Bench, options: dict[str, str]
) -> None:
    (task_id, _) = ended(bench, biz_key="customer:7")
    erase(bench.engine, ["customer:7"], None)
    with bench.engine.begin() as connection:
        requeue_task(connection, task_id)

    bench.drain(**options)

    assert "The payload was erased" in (bench.task(task_id).error or "")


def test_what_operators_typed_about_it_goes_but_not_of_a_bulk_that_goes_on(bench: Bench) -> None:
    @bench.handler("t")
    def run(ctx: TaskContext, payload: dict[str, Any]) -> None: ...

    bench.create(payload={"card": 1}, biz_key="customer:7", delay="1h")
    patch = {"card": CANARY}
    token = start_bulk(bench.engine, "edit", biz_key="customer:7", patch=patch)

    left = erase(bench.engine, ["customer:7"], None, cancel=True)
    assert (left.open_bulks, left.complete) == ((token,), False)
    run_bulk(bench.engine, token, registry=bench.registry)
    done = erase(bench.engine, ["customer:7"], None)

    assert done.complete
    assert done.rows["task_audit"] == 1
    assert CANARY not in dumped(bench)


def test_the_reasons_that_operators_gave_go_out_of_the_trail(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOG, "level", Logged("all"))
    task_id = bench.create(payload={}, biz_key="customer:7")
    with bench.engine.begin() as connection:
        hold_task(connection, task_id, by="ann", why=CANARY)
    assert bench.sql("SELECT why FROM task_transition WHERE event = 'hold'") == CANARY

    receipt = erase(bench.engine, ["customer:7"], None, cancel=True)

    assert bench.sql("SELECT why FROM task_transition WHERE event = 'hold'") == "erased"
    assert receipt.rows["task_transition"] == 1
    assert CANARY not in dumped(bench)


def test_a_task_that_is_requeued_meanwhile_is_not_touched(bench: Bench) -> None:
    (task_id, _) = ended(bench, biz_key="customer:7")
    with bench.engine.begin() as connection:
        meant = pool_erase.find(connection, ["customer:7"], None)
    with bench.engine.begin() as connection:
        requeue_task(connection, task_id)

    with bench.engine.begin() as connection:
        changed = pool_erase.erase(connection, meant.over)

    assert (changed["task_completed"], changed["task_error"]) == (0, 1)
    assert bench.task(task_id).payload == {"card": CANARY}
