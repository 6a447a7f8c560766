"""All that an old key has encrypted is encrypted anew, beside workers, and none is lost."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tasks_app import (
    NewTask,
    TaskContext,
    cancel_task,
    create_group,
    create_tasks,
    explain_task,
    get_task,
)
from tasks_app.domain.encryption import Keyring, parse_token, read_keys, token_of
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.flow_control.limits import WaitingKind, WaitingReason
from tasks_app.pool.operations.encrypted_values import PLACES, count, read, replace
from tasks_app.pool.runs.leases import release_parked
from tasks_app.runtime.encryption.encryption import AGAIN_S, Encryption
from tasks_app.runtime.encryption.rotation import Rotated, rotate
from tests.clock import until
from tests.factory import claimed_task, some
from tests.runtime.bench import Bench
from tests.runtime.encryption.conftest import NEW, OLD, Configure
from tests.runtime.handler_db.twins import twin

BOTH = f"{NEW},{OLD}"
RING = Keyring(read_keys(BOTH))
PENDING = next(place for place in PLACES if place.name == "task_pending.payload")


def by_key(bench: Bench) -> dict[str, int]:
    with bench.engine.begin() as connection:
        return {f"{place} {key}": number for place, key, number in count(connection)}


def some_of_each(bench: Bench) -> dict[str, int]:
    """Encrypted values in every place, by the old key."""

    @bench.handler("t", max_attempts=1)
    def run(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, Any]:
        if payload.get("bad"):
            ctx.step("a", lambda: payload)
            raise ValueError(f"no {payload['n']}")
        return payload

    done = bench.create(payload={"n": 1})
    failed = bench.create(payload={"n": 2, "bad": True})
    bench.drain(encryption_keys=OLD)
    waits = bench.create(payload={"n": 3}, delay="1h")
    with bench.engine.begin() as connection:
        later = NewTask("t", {"n": 4}, delay="1h")
        then = NewTask("t", {"n": 5})
        create_group(connection, [later], then=then, on_failure=then)
    return {"done": done, "failed": failed, "waits": waits}


@pytest.mark.test_all
def test_every_place_is_encrypted_anew(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    ids = some_of_each(bench)
    assert by_key(bench) == {
        "task_group.then_row old": 1,
        "task_group.on_failure old": 1,
        "task_pending.payload old": 2,
        "task_error.payload old": 1,
        "task_completed.payload old": 1,
        "task_completed.result old": 1,
        "task_step.result old": 1,
        "task_attempt.encrypted_message old": 1,
    }

    done = rotate(bench.engine, RING, by="anna")

    assert (done.number, done.complete) == (9, True)
    assert {place.rpartition(" ")[2] for place in by_key(bench)} == {"new"}
    configure(encryption_keys=NEW)
    with bench.engine.connect() as connection:
        payloads = {
            word: task.payload
            for word, task_id in ids.items()
            if (task := get_task(connection, task_id))
        }
    assert payloads == {"done": {"n": 1}, "failed": {"n": 2, "bad": True}, "waits": {"n": 3}}
    (attempt,) = bench.attempts(ids["failed"])
    token = some(parse_token(attempt.encrypted_message or ""))
    assert Keyring(read_keys(NEW)).open(token, "error", "t") == "no 2"
    assert bench.sql("SELECT answers ->> 'rotated' FROM task_audit WHERE who = 'anna'") == "9"


def test_a_callback_runs_after_the_old_key_is_gone(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    bench.handler("t")(lambda ctx, payload: bench.runs.append(payload))
    bench.do(create_group, [NewTask("t", {"n": 1})], then=NewTask("t", {"n": 2}))
    rotate(bench.engine, RING)
    bench.drain(encryption_keys=NEW)
    assert bench.runs == [{"n": 1}, {"n": 2}]


def test_a_second_rotation_finds_nothing(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    some_of_each(bench)
    rotate(bench.engine, RING)
    before = bench.sql("SELECT string_agg(payload::text, '' ORDER BY id) FROM task_pending")
    assert rotate(bench.engine, RING).number == 0
    after = bench.sql("SELECT string_agg(payload::text, '' ORDER BY id) FROM task_pending")
    assert after == before


def test_one_that_was_stopped_is_started_again(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    ids = [bench.create(payload={"n": n}) for n in range(10)]

    def stop(_: Rotated) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rotate(bench.engine, RING, rows=3, told=stop)
    assert by_key(bench) == {"task_pending.payload new": 3, "task_pending.payload old": 7}

    assert rotate(bench.engine, RING, rows=3).number == 7
    assert [RING.ids[0]] * 10 == [
        token.key_id for i in ids if (token := token_of(bench.task(i).payload))
    ]


def test_what_cannot_be_opened_is_left_and_counted(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    bench.create(payload={"n": 1})
    other = bench.create(payload={"n": 2})
    bench.sql("UPDATE task_pending SET name = 'renamed' WHERE id = :id", id=other)

    broken = rotate(bench.engine, RING)
    assert (broken.number, broken.broken, broken.complete) == (1, {"old": 1}, False)

    third = Keyring({"third": b"3" * 32})
    missing = rotate(bench.engine, third)
    assert (missing.number, missing.missing) == (0, {"new": 1, "old": 1})
    with pytest.raises(ConfigurationError, match="No key"):
        rotate(bench.engine, Keyring({}))


def test_a_value_changed_meanwhile_is_not_overwritten(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    task_id = bench.create(payload={"n": 1})
    (old,) = bench.do(read, PENDING, -1, 10).found
    bench.sql("UPDATE task_pending SET payload = '{\"n\": 2}' WHERE id = :id", id=task_id)
    assert bench.do(replace, PENDING, [(old, '{"n": 3}')]) == 0
    assert bench.task(task_id).payload == {"n": 2}


def test_a_row_that_is_locked_is_left_for_the_next_pass(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    task_id = bench.create(payload={"n": 1})
    with bench.engine.begin() as holder:
        holder.execute(text("SELECT FROM task_pending WHERE id = :id FOR UPDATE"), {"id": task_id})
        held = rotate(bench.engine, RING)
    assert (held.number, held.busy, held.complete) == (0, 1, False)
    assert rotate(bench.engine, RING).number == 1


@pytest.mark.test_all
def test_tasks_that_run_meanwhile_lose_nothing(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")

    bench.handler("t")(lambda ctx, payload: payload)
    ids = bench.do(create_tasks, [NewTask("t", {"n": n}) for n in range(400)])
    worker = bench.work(encryption_keys=BOTH)
    bench.beside(worker.run)

    def over() -> bool:
        rotate(bench.engine, RING, rows=20)
        return bench.sql("SELECT count(*) FROM task_completed WHERE state = 'SUCCEEDED'") == 400

    until(over, 60)
    rotate(bench.engine, RING)

    assert {place.rpartition(" ")[2] for place in by_key(bench)} == {"new"}
    configure(encryption_keys=NEW)
    with bench.engine.connect() as connection:
        results = [task.result for i in ids if (task := get_task(connection, i))]
    assert results == [{"n": n} for n in range(400)]
    assert bench.sql("SELECT max(attempt) FROM task_completed") == 1


PARKED = "encryption key missing: old"


def said(bench: Bench, task_id: int) -> str:
    with bench.engine.connect() as connection:
        return " ".join(found.fact for found in explain_task(connection, task_id).findings)


@pytest.mark.parametrize("way", ["plain", "async"])
def test_it_is_parked_with_the_reason(bench: Bench, configure: Configure, way: str) -> None:
    configure(encrypted_tasks="t")
    bench.handler("t")(
        twin(lambda ctx, payload: bench.runs.append(payload), is_async=way == "async")
    )
    task_id = bench.create(payload={"n": 1})
    before = bench.task(task_id)
    bench.execute([task_id], encryption_keys=NEW)

    task = bench.task(task_id)
    assert (task.state, task.parked, task.failures, task.crashes) == ("PENDING", PARKED, 0, 0)
    assert task.due_at == before.due_at
    assert bench.runs == []
    assert bench.attempts(task_id) == []
    assert f"It was set aside: {PARKED}" in said(bench, task_id)
    row = "SELECT parked_kind || ' ' || parked_for FROM task_pending WHERE id = :id"
    assert bench.sql(row, id=task_id) == "encryption old"
    assert bench.sql("SELECT scan_at > now() FROM task_pending WHERE id = :id", id=task_id)


def test_it_runs_where_the_key_is(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    bench.handler("t")(lambda ctx, payload: bench.runs.append(payload))
    task_id = bench.create(payload={"n": 1})
    bench.execute([task_id], encryption_keys=NEW)
    bench.execute([task_id], encryption_keys=OLD)
    assert bench.runs == [{"n": 1}]
    assert bench.state(task_id) == "SUCCEEDED"
    assert bench.task(task_id).failures == 0


@pytest.mark.test_all
def test_it_runs_when_the_key_is_back(bench: Bench, configure: Configure, tmp_path: Path) -> None:
    configure(encrypted_tasks="t")
    keys = tmp_path / "keys"
    keys.write_text(NEW)
    bench.handler("t")(lambda ctx, payload: bench.runs.append(payload))
    task_id = bench.create(payload={"n": 1})
    configure(encryption_keys="")
    worker = bench.work(encryption_keys_file=str(keys), park_for=0.1)
    bench.beside(worker.run)
    until(lambda: bench.task(task_id).parked == PARKED)
    until(lambda: PARKED in said(bench, task_id))

    keys.write_text(f"{NEW}\n{OLD}\n")

    until(lambda: bench.runs == [{"n": 1}], 30)


def test_a_handler_that_is_to_be_encrypted_does_not_begin_without_any_key(bench: Bench) -> None:
    @bench.handler("t", encrypt=True)
    def run(ctx: TaskContext) -> str:
        bench.runs.append(1)
        return "secret"

    task_id = bench.execute_one("t")
    assert bench.runs == []
    assert bench.task(task_id).parked == "encryption key missing: none is configured"


def test_a_cancelled_one_does_not_come_back(connection: Connection) -> None:
    task = claimed_task(connection)
    cancel_task(connection, task.task_id)
    reason = WaitingReason(WaitingKind.ENCRYPTION, "old")
    assert release_parked(connection, task, reason, timedelta(seconds=15)) == "CANCELLED"
    assert connection.execute(text("SELECT count(*) FROM task_pending")).scalar() == 0


def test_a_missing_key_is_looked_for_again_after_a_while(bench: Bench, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(NEW)
    now = [0.0]
    one = Encryption(bench.settings(encryption_keys_file=str(keys)), clock=lambda: now[0])
    other = Encryption(bench.settings(encryption_keys=OLD))
    stored = other.sealed("{}", "payload", "t")
    with pytest.raises(Exception, match="old"):
        one.opened(stored, "payload", "t")
    keys.write_text(OLD)

    with pytest.raises(Exception, match="old"):
        one.opened(stored, "payload", "t")
    now[0] += AGAIN_S
    assert one.opened(stored, "payload", "t") == "{}"
    assert one.keyring.ids == ("old", "new")


def test_a_file_that_went_bad_leaves_the_keys_as_they_were(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(NEW)
    now = [0.0]
    one = Encryption(bench.settings(encryption_keys_file=str(keys)), clock=lambda: now[0])
    stored = Encryption(bench.settings(encryption_keys=OLD)).sealed("{}", "payload", "t")
    assert one.has_key()
    keys.write_text("old:canary")
    now[0] += AGAIN_S

    with pytest.raises(Exception, match="old"):
        one.opened(stored, "payload", "t")

    assert one.keyring.ids == ("new",)
    assert "canary" not in caplog.text


def test_a_worker_whose_keys_cannot_be_read_does_not_start(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match="TASKS_APP_ENCRYPTION_KEYS_FILE is wrong"):
        bench.child(start=False, encryption_keys_file="/nowhere/keys")
