"""What an encrypted task holds is plain in its handler alone."""

from __future__ import annotations

from datetime import timedelta
from secrets import token_hex
from typing import Any

import psycopg
import pytest

from tasks_app import (
    Flow,
    NewTask,
    Retry,
    TaskContext,
    create_flow,
    create_group,
    create_schedule,
    create_task,
    create_tasks,
    get_task,
    group_results,
    requeue_task,
    run_schedule,
)
from tasks_app.domain.encryption import parse_token, token_of
from tasks_app.domain.errors import ConfigurationError, InvalidSelectionError, InvalidTaskError
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.pool.operations.selection import SelectedTask
from tasks_app.pool.runs.claim import PAYLOADS_UP_TO
from tasks_app.runtime.api.amend_waiting import edit_payload
from tasks_app.runtime.api.bulk_step import edited_payload
from tasks_app.runtime.encryption.encryption import encryption
from tasks_app.runtime.large_values import large_values
from tasks_app.testing import assert_created
from tests.factory import some
from tests.runtime.bench import Bench
from tests.runtime.encryption.conftest import NEW, OLD, Configure
from tests.runtime.handler_db.twins import twin

CANARY = "canary-4711"
KEYS: dict[str, Any] = {"encryption_keys": OLD}
DUMPED = (
    *("task_pending", "task_completed", "task_error", "task_attempt", "task_transition"),
    *("task_audit", "task_group", "task_progress", "task_log", "task_fingerprint"),
)


def dumped(bench: Bench) -> str:
    rows = (bench.rows(f"SELECT to_jsonb(t)::text FROM {table} t") for table in DUMPED)
    return "\n".join(row for of_table in rows for (row,) in of_table)


def echo(bench: Bench, name: str = "t", **options: Any) -> None:
    @bench.handler(name, **options)
    def run(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, Any]:
        bench.runs.append(payload)
        return {"echo": payload}


@pytest.mark.parametrize("patterns", ["t", "x,t*", "queue:default", "queue:d*"])
def test_payload_and_result_are_encrypted_where_the_setting_says_so(
    bench: Bench, configure: Configure, patterns: str
) -> None:
    configure(encrypted_tasks=patterns)
    echo(bench)
    task_id = bench.create(payload={"card": CANARY})
    assert token_of(bench.task(task_id).payload)

    bench.drain(**KEYS, encrypted_tasks=patterns)

    assert bench.runs == [{"card": CANARY}]
    assert token_of(bench.task(task_id).result)
    assert CANARY not in dumped(bench)
    task = some(bench.do(get_task, task_id))
    assert task.payload == {"card": CANARY}
    assert task.result == {"echo": {"card": CANARY}}


def test_what_no_pattern_names_stays_plain(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="other,queue:other")
    echo(bench)
    task_id = bench.create(payload={"n": 1})
    bench.drain(**KEYS, encrypted_tasks="other")
    assert bench.task(task_id).payload == {"n": 1}
    assert bench.task(task_id).result == {"echo": {"n": 1}}


@pytest.mark.test_all
def test_a_handler_may_say_so(bench: Bench, configure: Configure) -> None:
    @bench.handler("t", encrypt=True)
    def run(ctx: TaskContext, payload: dict[str, Any]) -> str:
        return CANARY

    ids = bench.do(create_tasks, [NewTask(run, {"card": CANARY}) for _ in range(1200)])
    assert CANARY not in dumped(bench)
    bench.drain(**KEYS)
    assert bench.states(ids[:3]) == ["SUCCEEDED"] * 3
    assert CANARY not in dumped(bench)


def test_results_of_encrypted_tasks_stay_encrypted(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    echo(bench)
    task_id = bench.create(payload={"card": CANARY})
    configure(encrypted_tasks="")
    bench.drain(**KEYS)
    assert token_of(bench.task(task_id).result)


def test_a_plain_task_of_sql_has_an_encrypted_result(bench: Bench, configure: Configure) -> None:
    echo(bench, encrypt=True)
    task_id = bench.sql("""SELECT task_create('t', '{"n": 1}')""")
    bench.drain(**KEYS)
    assert bench.runs == [{"n": 1}]
    assert bench.task(task_id).payload == {"n": 1}
    assert token_of(bench.task(task_id).result)


@pytest.mark.parametrize("length", [1, PAYLOADS_UP_TO * 2])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_error_is_its_class_and_place(
    bench: Bench, configure: Configure, length: int, asynchronous: bool
) -> None:
    configure(encrypted_tasks="t", payload_limit="1000000")
    words = iter(["first", "second"])

    def run(ctx: Any, payload: dict[str, Any]) -> None:
        raise ValueError(f"{next(words)} {payload['card']}")

    bench.handler("t", max_attempts=2, retry="fixed 1ms")(twin(run, is_async=asynchronous))
    large_values.cache_clear()
    task_id = bench.create(payload={"card": CANARY, "more": token_hex(length // 2)})
    configure(encrypted_tasks="")
    bench.drain(**KEYS, transitions="all")
    large_values.cache_clear()

    task, attempts = bench.task(task_id), bench.attempts(task_id)
    assert (task.state, task.error) == ("FAILED", "ValueError: encrypted")
    assert CANARY not in dumped(bench)
    first, second = attempts
    assert first.message == second.message == "encrypted"
    assert "raise ValueError" in (first.traceback or "")
    assert first.fingerprint == second.fingerprint == task.fingerprint
    token = some(parse_token(first.encrypted_message or ""))
    assert encryption().opened_token(token, "error", "t") == f"first {CANARY}"


def test_the_log_names_the_class_alone(
    bench: Bench, configure: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    configure(encrypted_tasks="t")
    bench.raising(ValueError(CANARY))
    with caplog.at_level("DEBUG"):
        bench.create(payload={"card": "other"}, max_attempts=1)
        bench.drain(**KEYS)
    assert "ValueError: encrypted" in caplog.text
    assert CANARY not in caplog.text


def test_a_payload_for_the_next_attempt_is_encrypted(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")

    @bench.handler("t")
    def run(ctx: TaskContext, payload: dict[str, Any]) -> None:
        bench.runs.append(payload)
        if ctx.attempt == 1:
            raise Retry(after=timedelta(0), payload={"card": CANARY})

    task_id = bench.create(payload={"n": 1})
    bench.drain(**KEYS)

    assert bench.runs == [{"n": 1}, {"card": CANARY}]
    assert bench.state(task_id) == "SUCCEEDED"
    assert CANARY not in dumped(bench)


def test_an_edited_payload_stays_encrypted(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    echo(bench)
    task_id = bench.create(payload={"n": 1})
    configure(encrypted_tasks="")
    assert bench.do(edit_payload, task_id, {"card": CANARY}, registry=bench.registry)
    assert CANARY not in dumped(bench)
    bench.drain(**KEYS)
    assert bench.runs == [{"card": CANARY}]


def test_a_bulk_edit_is_refused_as_its_patch_is_audited(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    echo(bench)
    task_id = bench.create(payload={"n": 1})
    stored = bench.sql("SELECT payload::text FROM task_pending WHERE id = :id", id=task_id)
    found = SelectedTask(task_id, "t", State.PENDING, stored)
    with pytest.raises(InvalidSelectionError, match="is encrypted"):
        edited_payload(found, {"n": 2}, bench.registry)
    assert bench.task(task_id).pool == Pool.PENDING


@pytest.mark.test_all
def test_a_requeued_task_runs_again(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    echo(bench)
    task_id = bench.create(payload={"card": CANARY})
    bench.drain(**KEYS)
    bench.do(requeue_task, task_id)
    bench.drain(**KEYS)
    assert bench.runs == [{"card": CANARY}] * 2


def test_tasks_of_schedules_are_encrypted(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    with bench.engine.begin() as connection:
        create_schedule(connection, "nightly", "t", {"n": 1}, cron="0 3 * * *")
        task_id = some(run_schedule(connection, "nightly"))
    assert token_of(bench.task(task_id).payload)


def test_groups_show_results_and_encrypt_their_callback(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t,then")
    echo(bench)
    echo(bench, "then")
    group = bench.do(
        create_group, [NewTask("t", {"card": CANARY})], then=NewTask("then", {"card": CANARY})
    )
    assert CANARY not in dumped(bench)

    bench.drain(**KEYS)

    assert CANARY not in dumped(bench)
    assert bench.runs == [{"card": CANARY}] * 2
    with bench.engine.connect() as connection:
        (ended,) = group_results(connection, group.id)
    assert ended.result == {"echo": {"card": CANARY}}


def test_results_of_a_row_of_runs_are_encrypted(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")

    @bench.handler("t")
    def run(ctx: TaskContext, payload: dict[str, Any]) -> str:
        if payload["n"] == 2:
            raise ValueError(CANARY)
        return CANARY

    ids = [bench.create(payload={"n": n}, max_attempts=1) for n in range(4)]
    bench.drain(**KEYS)
    assert bench.states(ids) == ["SUCCEEDED", "SUCCEEDED", "FAILED", "SUCCEEDED"]
    assert CANARY not in dumped(bench)


def test_without_a_key_nothing_is_created_in_plain(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t", encryption_keys="")
    with pytest.raises(ConfigurationError, match="TASKS_APP_ENCRYPTION_KEYS"):
        bench.create(payload={"card": CANARY})
    assert CANARY not in dumped(bench)


def test_limits_count_what_is_meant_not_what_is_stored(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    bench.create(payload={"a": "x" * (64 * 1024 - 20)})
    with pytest.raises(InvalidTaskError, match="bytes as JSON"):
        bench.create(payload={"a": "x" * (64 * 1024)})


def test_a_stored_value_is_nobodys_payload(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    echo(bench)
    stolen = bench.task(bench.create(payload={"card": CANARY})).payload
    with pytest.raises(InvalidTaskError, match="is an encrypted value"):
        bench.create(payload=stolen)
    with bench.engine.begin() as connection, pytest.raises(InvalidSelectionError):
        edit_payload(connection, bench.create(), stolen, registry=bench.registry)


def test_a_value_put_into_another_task_is_not_opened(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t,thief")
    echo(bench)
    echo(bench, "thief")
    stolen = bench.create(payload={"card": CANARY}, run_at=None, delay="1h")
    thief = bench.create("thief", payload={}, max_attempts=5)
    bench.sql(
        "UPDATE task_pending SET payload = (SELECT payload FROM task_pending WHERE id = :from)"
        " WHERE id = :to",
        **{"from": stolen, "to": thief},
    )

    bench.drain(**KEYS)

    assert bench.state(thief) == "FAILED"
    assert bench.runs == []
    (attempt,) = bench.attempts(thief)
    token = some(parse_token(attempt.encrypted_message or ""))
    assert "cannot be decrypted with the key old" in encryption().opened_token(
        token, "error", "thief"
    )


@pytest.mark.test_all
def test_a_result_does_not_open_as_a_payload(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    echo(bench)
    done = bench.create(payload={"card": CANARY})
    bench.drain(**KEYS)
    bench.runs.clear()
    task_id = bench.create(payload={}, max_attempts=1)
    bench.sql(
        "UPDATE task_pending SET payload = (SELECT result FROM task_completed WHERE id = :from)"
        " WHERE id = :to",
        **{"from": done, "to": task_id},
    )

    bench.drain(**KEYS)

    assert (bench.state(task_id), bench.runs) == ("FAILED", [])


def test_another_key_encrypts_when_it_comes_first(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    echo(bench)
    task_id = bench.create(payload={"card": CANARY})
    bench.drain(encryption_keys=f"{NEW},{OLD}")
    assert bench.runs == [{"card": CANARY}]
    token = some(token_of(bench.task(task_id).result))
    assert token.key_id == "new"


def test_without_its_key_a_task_is_shown_as_stored(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    task_id = bench.create(payload={"card": CANARY})
    configure(encryption_keys=NEW)
    task = some(bench.do(get_task, task_id))
    assert token_of(task.payload)


def test_producers_with_psycopg_encrypt(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    with psycopg.connect(bench.plain_url) as connection:
        task_id = create_task(connection, "t", {"card": CANARY})
    assert token_of(bench.task(task_id).payload)


def test_the_test_kit_decrypts(bench: Bench, configure: Configure) -> None:
    configure(encrypted_tasks="t")
    with bench.engine.begin() as connection:
        create_task(connection, "t", {"card": CANARY})
        assert_created(connection, "t", {"card": CANARY})


def test_items_of_a_map_are_encrypted_by_whoever_creates_them(
    bench: Bench, configure: Configure
) -> None:
    read: list[Any] = []

    @bench.handler("item", encrypt=True)
    def item(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    bench.handler("list", encrypt=True)(lambda ctx: [{"card": CANARY}])
    bench.handler("read")(lambda ctx: read.append(ctx.need("all")))
    flow = Flow("f")
    flow.map("all", item, over=flow.step("list", "list"))
    flow.step("read", "read", needs="all")
    bench.do(create_flow, flow)
    bench.drain(**KEYS)
    assert read == [[{"card": CANARY}]]
    assert CANARY not in dumped(bench)
    assert CANARY not in str(bench.rows("SELECT result::text FROM task_flow_step"))


def test_items_of_an_encrypted_list_are_encrypted(bench: Bench, configure: Configure) -> None:
    bench.handler("list", encrypt=True)(lambda ctx: [{"card": CANARY}])
    bench.handler("item")(lambda ctx, payload: payload)
    flow = Flow("f")
    flow.map("all", "item", over=flow.step("list", "list"))
    bench.do(create_flow, flow)
    bench.drain(**KEYS)
    assert CANARY not in dumped(bench)
    assert CANARY not in str(bench.rows("SELECT result::text FROM task_flow_step"))
