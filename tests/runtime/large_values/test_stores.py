"""An object store keeps large values: here a folder, and one of somebody's own that fails."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tasks_app import create_task, load_large_values
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.large_values.store import LargeValueStore
from tasks_app.runtime.erasure import erase
from tasks_app.runtime.large_values import LargeStoreError, LargeValues
from tasks_app.runtime.leader.maintainer import LARGE_VALUE_GRACE, LargeValueUpkeep
from tests.runtime.bench import Bench
from tests.runtime.large_values.conftest import BIG, Configure, echo, values
from tests.waiting import until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "values"
    made.mkdir()
    return made


@pytest.fixture
def outside(configure: Configure, folder: Path) -> dict[str, Any]:
    return configure(large_values=f"folder:{folder}")


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("??/*") if path.is_file())


def aged(folder: Path, age: timedelta = LARGE_VALUE_GRACE + timedelta(minutes=1)) -> None:
    """Let all files be older than they are."""
    at = time.time() - age.total_seconds()
    for path in files(folder):
        os.utime(path, (at, at))


def swept(bench: Bench, settings: dict[str, Any]) -> None:
    upkeep = LargeValueUpkeep(LargeValues(bench.settings(**settings)), bench.engine.begin, most=1)
    assert upkeep.run()
    upkeep.run_outside()


def test_payload_and_result_are_files(bench: Bench, outside: dict[str, Any], folder: Path) -> None:
    echo(bench)
    task_id = bench.create(payload=BIG)
    assert len(files(folder)) == 1
    bench.drain(**outside)

    assert bench.runs == [BIG]
    assert len(files(folder)) == values(bench) == 2
    assert bench.sql("SELECT count(content) FROM task_large_value") == 0
    with bench.engine.connect() as connection:
        assert load_large_values(connection, bench.task(task_id)).result == {"echo": BIG}


def test_a_file_goes_when_its_task_has_gone(
    bench: Bench, outside: dict[str, Any], folder: Path
) -> None:
    keeps, goes = bench.create(payload=BIG), bench.create(payload=BIG)
    bench.sql("DELETE FROM task_pending WHERE id = :id", id=goes)
    aged(folder)

    swept(bench, outside)

    assert len(files(folder)) == values(bench) == 1
    with bench.engine.connect() as connection:
        assert load_large_values(connection, bench.task(keeps)).payload == BIG


def test_a_file_whose_transaction_is_open_is_left_for_a_day(
    bench: Bench, outside: dict[str, Any], folder: Path
) -> None:
    with bench.engine.connect() as producer:
        create_task(producer, "t", BIG)
        aged(folder, LARGE_VALUE_GRACE - timedelta(minutes=1))
        swept(bench, outside)
        producer.commit()
    assert len(files(folder)) == 1

    with bench.engine.connect() as producer:
        create_task(producer, "t", BIG)
        producer.rollback()
    swept(bench, outside)
    assert len(files(folder)) == 2
    aged(folder)
    swept(bench, outside)
    assert len(files(folder)) == 1


def test_a_producer_that_is_killed_before_its_commit_leaves_a_file_for_maintenance(
    bench: Bench, outside: dict[str, Any], folder: Path
) -> None:
    with bench.engine.connect() as producer:
        create_task(producer, "t", BIG)
        pid = producer.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        bench.sql("SELECT pg_terminate_backend(:pid, 5000)", pid=pid)
        producer.invalidate()
    assert (len(files(folder)), values(bench)) == (1, 0)
    aged(folder)
    swept(bench, outside)
    assert files(folder) == []


def test_an_erased_task_has_no_file(bench: Bench, outside: dict[str, Any], folder: Path) -> None:
    echo(bench)
    bench.create(payload=BIG, biz_key="order:1")
    bench.drain(**outside)
    erase(bench.engine, ["order:1"], None)
    assert (files(folder), values(bench)) == ([], 0)


def test_a_task_whose_store_does_not_answer_is_given_back_uncharged(
    bench: Bench, outside: dict[str, Any], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    echo(bench, at_most_once=True)
    task_id = bench.create(payload=BIG)
    away = folder.with_name("away")
    folder.rename(away)
    child = bench.child(**outside)
    for attempt in (1, 2):
        bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
        child.execute([task_id])
        until(lambda: bench.task(task_id).state == "PENDING")
        assert bench.task(task_id).attempt == attempt  # both tries met the store
    assert bench.task(task_id).failures == 0
    assert bench.runs == []
    assert caplog.text.count("cannot start: The payload cannot be loaded") == 1

    away.rename(folder)
    bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
    child.execute([task_id])
    until(lambda: bench.runs == [BIG])


def test_a_file_that_is_lost_fails_its_task_by_name(
    bench: Bench, outside: dict[str, Any], folder: Path
) -> None:
    echo(bench)
    task_id = bench.create(payload=BIG)
    for path in files(folder):
        path.unlink()
    bench.drain(**outside)
    assert bench.task(task_id).state == "FAILED"
    assert "is missing" in str(bench.task(task_id).error)


def test_a_worker_without_the_store_says_what_to_set(
    bench: Bench, outside: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    echo(bench)
    task_id = bench.create(payload=BIG)
    bench.child(large_values="").execute([task_id])
    until(lambda: bench.task(task_id).state == "PENDING")
    assert "Set TASKS_APP_LARGE_VALUES" in caplog.text


def unreachable() -> LargeValueStore:
    raise ConnectionError("password=hunter2")


@pytest.mark.parametrize("place", [f"{__name__}:unreachable", "nowhere:store"])
def test_a_store_that_cannot_be_opened_is_no_failure_of_a_task(
    bench: Bench, outside: dict[str, Any], place: str, caplog: pytest.LogCaptureFixture
) -> None:
    echo(bench, max_attempts=1)
    task_id = bench.create(payload=BIG)
    bench.execute([task_id], large_values=place)
    assert (bench.state(task_id), bench.task(task_id).failures) == ("PENDING", 0)
    assert "cannot start" in caplog.text
    assert "hunter2" not in caplog.text


class Refusing:
    """Of somebody's own; it has no room."""

    def put(self, key: str, data: bytes) -> None:
        raise OSError(f"no room for {data!r}")

    def get(self, key: str) -> bytes | None:
        return None

    def delete(self, key: str) -> None: ...

    def keys(self, before: datetime) -> Iterable[str]:
        return ()


def refusing() -> LargeValueStore:
    return Refusing()


def test_a_store_that_refuses_fails_the_producer_and_shows_no_payload(
    bench: Bench, configure: Configure
) -> None:
    configure(large_values=f"{__name__}:refusing")
    with pytest.raises(LargeStoreError, match="cannot be stored: OSError") as told:
        bench.create(payload=BIG)
    assert "xxx" not in str(told.value)
    assert bench.sql("SELECT count(*) FROM task_pending") == 0


def test_a_result_that_a_store_refuses_is_a_failed_attempt(
    bench: Bench, configure: Configure
) -> None:
    @bench.handler(max_attempts=1)
    def run(ctx: Any) -> dict[str, Any]:
        return BIG

    task_id = bench.create()
    bench.drain(large_values=f"{__name__}:refusing")
    assert bench.task(task_id).state == "FAILED"
    assert "cannot be stored: OSError" in str(bench.task(task_id).error)


def test_a_function_that_is_none_is_named(configure: Configure, bench: Bench) -> None:
    configure(large_values="nowhere:store")
    with pytest.raises(ConfigurationError, match="nowhere:store isn't a function"):
        bench.create(payload=BIG)
