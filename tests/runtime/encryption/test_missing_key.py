"""A task whose key is missing waits, uncharged, and says why; it runs when the key is back."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tasks_app import TaskContext, cancel_task, explain_task
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.flow_control.limits import WaitingKind, WaitingReason
from tasks_app.pool.runs.leases import release_parked
from tasks_app.runtime.encryption.encryption import AGAIN_S, Encryption
from tests.factory import claimed_task
from tests.runtime.bench import Bench
from tests.runtime.encryption.conftest import NEW, OLD, Configure
from tests.waiting import until

PARKED = "encryption key missing: old"


def said(bench: Bench, task_id: int) -> str:
    with bench.engine.connect() as connection:
        return " ".join(found.fact for found in explain_task(connection, task_id).findings)


@pytest.mark.parametrize("way", ["plain", "async"])
def test_it_is_parked_with_the_reason(bench: Bench, configure: Configure, way: str) -> None:
    configure(encrypted_tasks="t")
    if way == "async":

        @bench.handler("t")
        async def run(ctx: Any, payload: dict[str, Any]) -> None:
            bench.runs.append(payload)
    else:

        @bench.handler("t")
        def run(ctx: TaskContext, payload: dict[str, Any]) -> None:
            bench.runs.append(payload)

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

    @bench.handler("t")
    def run(ctx: TaskContext, payload: dict[str, Any]) -> None:
        bench.runs.append(payload)

    task_id = bench.create(payload={"n": 1})
    bench.execute([task_id], encryption_keys=NEW)
    bench.execute([task_id], encryption_keys=OLD)

    assert bench.runs == [{"n": 1}]
    assert bench.state(task_id) == "SUCCEEDED"
    assert bench.task(task_id).failures == 0


@pytest.mark.test_all
def test_it_runs_when_the_key_is_back_in_the_file(
    bench: Bench, configure: Configure, tmp_path: Path
) -> None:
    configure(encrypted_tasks="t")
    keys = tmp_path / "keys"
    keys.write_text(NEW)

    @bench.handler("t")
    def run(ctx: TaskContext, payload: dict[str, Any]) -> None:
        bench.runs.append(payload)

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

    task_id = bench.create("t")
    bench.execute([task_id])

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
