"""Stores of large values."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import event
from sqlalchemy.orm import Session

from tasks_app import InvalidTaskError, TaskBuffer, TaskContext, create_task, load_large_values
from tasks_app.celery_tasks import OutboxTask, outbox
from tasks_app.domain.encryption import Keyring, read_keys
from tasks_app.domain.errors import ConfigurationError, InvalidSelectionError
from tasks_app.domain.large_values.store import LargeValueStore, reference_of
from tasks_app.pool.operations.encrypted_values import count
from tasks_app.runtime.encryption.rotation import rotate
from tasks_app.runtime.encryption.values import is_secret
from tasks_app.runtime.erasure import erase
from tasks_app.runtime.large_values import FolderStore, LargeStoreError, LargeValues
from tasks_app.runtime.leader.maintainer import LARGE_VALUE_GRACE, LargeValueUpkeep
from tasks_app.runtime.transfer import export_tasks, import_tasks
from tests.clock import until
from tests.runtime.bench import Bench
from tests.runtime.encryption.conftest import NEW, OLD
from tests.runtime.large_values.conftest import BIG, Configure, echo, values


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
    assert bench.do(load_large_values, bench.task(task_id)).result == {"echo": BIG}


def test_a_file_goes_with_its_task(bench: Bench, outside: dict[str, Any], folder: Path) -> None:
    keeps, goes = bench.create(payload=BIG), bench.create(payload=BIG)
    bench.sql("DELETE FROM task_pending WHERE id = :id", id=goes)
    aged(folder)
    swept(bench, outside)
    assert len(files(folder)) == values(bench) == 1
    assert bench.do(load_large_values, bench.task(keeps)).payload == BIG


def test_a_file_stays_a_day_for_its_commit(
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


def test_a_lost_file_fails_its_task(bench: Bench, outside: dict[str, Any], folder: Path) -> None:
    echo(bench)
    task_id = bench.create(payload=BIG)
    for path in files(folder):
        path.unlink()
    bench.drain(**outside)
    assert bench.task(task_id).state == "FAILED"
    assert "is missing" in bench.error(task_id)


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


def test_a_store_that_refuses_shows_no_payload(bench: Bench, configure: Configure) -> None:
    configure(large_values=f"{__name__}:refusing")
    with pytest.raises(LargeStoreError, match="cannot be stored: OSError") as told:
        bench.create(payload=BIG)
    assert "xxx" not in str(told.value)
    assert bench.sql("SELECT count(*) FROM task_pending") == 0


def test_a_result_refused_by_a_store_is_a_failure(bench: Bench, configure: Configure) -> None:
    bench.handler(max_attempts=1)(lambda ctx: BIG)
    task_id = bench.create()
    bench.drain(large_values=f"{__name__}:refusing")
    assert bench.task(task_id).state == "FAILED"
    assert "cannot be stored: OSError" in bench.error(task_id)


def test_a_function_that_is_none_is_named(configure: Configure, bench: Bench) -> None:
    configure(large_values="nowhere:store")
    with pytest.raises(ConfigurationError, match="nowhere:store isn't a function"):
        bench.create(payload=BIG)


def test_a_folder_keeps_what_it_was_given(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "new")
    store.put("a" * 32, b"1")
    assert store.get("a" * 32) == b"1"
    assert store.get("b" * 32) is None
    now = datetime.now(UTC)
    assert list(store.keys(now - timedelta(hours=1))) == []
    assert list(store.keys(now + timedelta(hours=1))) == ["a" * 32]
    store.delete("a" * 32)
    store.delete("a" * 32)
    assert store.get("a" * 32) is None


def test_what_a_killed_process_had_begun_is_no_value_and_is_removed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    part = tmp_path / "aa" / f"{'a' * 32}-1.part"
    part.parent.mkdir()
    part.write_bytes(b"ha")
    assert list(store.keys(datetime.now(UTC) + timedelta(hours=1))) == []
    assert not part.exists()


def test_a_disk_that_is_full_does_not_become_fuller_by_each_try(tmp_path: Path) -> None:
    store, longest = FolderStore(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, longest[1]))  # Python ignores its signal
    try:
        with pytest.raises(OSError, match="too large"):
            store.put("a" * 32, b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, longest)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_new_subfolder_is_synced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk, fsync = list[str](), os.fsync

    def noted(descriptor: int) -> None:
        on_disk.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    FolderStore(tmp_path).put("a" * 32, b"1")
    assert [str(tmp_path), str(tmp_path / "aa")] == [on_disk[0], on_disk[-1]]


def test_a_buffer_writes_each_with_its_task(bench: Bench, kept: dict[str, Any]) -> None:
    echo(bench)
    with TaskBuffer(bench.engine, every="1h") as buffer:
        for n in range(3):
            buffer.create_task("t", {**BIG, "n": n})
        buffer.create_task("t", {"n": 3})
        assert buffer.flush("20s")
        assert values(bench) == 3
    bench.drain(**kept)
    assert [payload["n"] for payload in bench.runs] == [0, 1, 2, 3]
    assert bench.runs[0] == {**BIG, "n": 0}


def test_a_taken_key_leaves_nothing(bench: Bench, kept: dict[str, Any]) -> None:
    with TaskBuffer(bench.engine, every="1h") as buffer:
        for _ in range(2):
            buffer.create_task("t", BIG, unique_key="k")
    assert values(bench) == 1


def test_a_batch_that_is_tried_again_is_written_once(
    bench: Bench, kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskBuffer, "_pause_s", lambda _: 0.05)
    failures = iter([ConnectionError("before the commit")])

    def refuse(_: Any) -> None:
        for failure in failures:
            raise failure

    event.listen(bench.engine, "commit", refuse)
    try:
        with TaskBuffer(bench.engine, every="1h") as buffer:
            buffer.create_task("t", BIG)
            assert buffer.flush("20s")
            assert buffer.counts().written == 1
    finally:
        event.remove(bench.engine, "commit", refuse)

    assert bench.sql("SELECT count(*) FROM task_pending") == 1
    assert values(bench) == 1


@pytest.mark.parametrize(
    ("settings", "most"),
    [({}, 65536), ({"large_values": "database", "large_limit": 100_000}, 100_000)],
    ids=["without the setting", "beyond the large limit"],
)
def test_a_buffer_refuses_it_at_once(
    bench: Bench, configure: Configure, settings: dict[str, Any], most: int
) -> None:
    configure(**settings)
    refused = pytest.raises(InvalidTaskError, match=f"at most {most} bytes")
    with TaskBuffer(bench.engine) as buffer, refused:
        buffer.create_task("t", BIG)


def test_a_call_in_an_outbox_commits_with_its_value(bench: Bench, kept: dict[str, Any]) -> None:
    app = Celery("mails", broker="redis://nowhere", set_as_current=False)

    @app.task(base=OutboxTask, name="t")
    def send(text: str) -> None: ...

    with Session(bench.engine) as session:
        with outbox(session):
            send.delay(BIG["text"])
        session.rollback()
        assert values(bench) == 0
        with outbox(session):
            result = send.delay(BIG["text"])
        session.commit()
    task_id = int(result.id)

    assert reference_of(bench.task(task_id).payload)
    assert values(bench) == 1
    echo(bench)
    bench.drain(**kept)
    assert bench.runs == [{"args": [BIG["text"]], "kwargs": {}}]


SECRET = {"encryption_keys": OLD, "encrypted_tasks": "t"}


def stored(bench: Bench) -> str:
    content = (
        "SELECT content FROM task_large_value UNION ALL SELECT to_jsonb(t)::text FROM task_all t"
    )
    return "".join(value for (value,) in bench.rows(content) if value)


def test_payload_and_result_are_encrypted_and_then_kept(bench: Bench, configure: Configure) -> None:
    kept = configure(large_values="database", **SECRET)
    echo(bench)
    task_id = bench.create(payload=BIG)
    bench.drain(**kept)

    assert bench.runs == [BIG]
    assert values(bench) == 2
    assert "x" * 20 not in stored(bench)  # base64 may hold three
    task = bench.task(task_id)
    for value in (task.payload, task.result):
        reference = reference_of(value)
        assert reference
        assert reference.encrypted
    full = bench.do(load_large_values, task)
    assert (full.payload, full.result) == (BIG, {"echo": BIG})


def test_a_handler_without_payload_encrypts_its_result(bench: Bench, configure: Configure) -> None:
    configure(large_values="database", **SECRET)
    bench.handler()(lambda ctx: {"card": "canary"})
    task_id = bench.create(payload=BIG)
    # From here on nothing but the reference says that it is encrypted.
    bench.drain(**configure(encryption_keys=OLD, encrypted_tasks=""))
    task = bench.task(task_id)
    assert (task.state, is_secret(task.result)) == ("SUCCEEDED", True)
    assert "canary" not in stored(bench)


def test_rotation_encrypts_them_anew(bench: Bench, configure: Configure) -> None:
    configure(large_values="database", **SECRET)
    task_id = bench.create(payload=BIG)
    done = rotate(bench.engine, Keyring(read_keys(f"{NEW},{OLD}")))
    assert (done.number, done.complete) == (1, True)
    assert bench.do(count) == [("task_large_value.content (payload)", "new", 1)]
    configure(large_values="database", encryption_keys=NEW, encrypted_tasks="t")
    assert bench.do(load_large_values, bench.task(task_id)).payload == BIG


@pytest.mark.parametrize("secret", [{}, SECRET])
def test_a_move_takes_them_along(
    bench: Bench, configure: Configure, tmp_path: Path, secret: dict[str, str]
) -> None:
    kept = configure(large_values="database", **secret)
    echo(bench)
    bench.create(payload=BIG)
    bench.create(payload={"n": 1})
    export_tasks(bench.engine, tmp_path / "file", name="t")
    bench.sql("DELETE FROM task_pending")  # as if it were another database
    bench.sql("DELETE FROM task_large_value")

    assert import_tasks(bench.engine, tmp_path / "file", tmp_path / "receipt").tasks == 2
    assert values(bench) == 1
    bench.drain(**kept)

    assert len(bench.runs) == 2
    assert BIG in bench.runs


@pytest.mark.parametrize("secret", [{}, SECRET])
def test_where_they_are_not_kept_an_import_is_refused(
    bench: Bench, configure: Configure, tmp_path: Path, secret: dict[str, str]
) -> None:
    configure(large_values="database", **secret)
    bench.create(payload={"text": "x" * 200_000})
    export_tasks(bench.engine, tmp_path / "file", name="t")
    bench.sql("DELETE FROM task_pending")
    configure(large_values="", **secret)
    with pytest.raises(InvalidSelectionError, match=r"Line 1: payload has .* bytes"):
        import_tasks(bench.engine, tmp_path / "file", tmp_path / "receipt")
    assert bench.sql("SELECT count(*) FROM task_pending") == 0


def test_no_text_quotes_a_large_payload_where_paths_are_masked_and_no_line_ever(
    bench: Bench, kept: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    @bench.handler("t", max_attempts=1)
    def run(ctx: TaskContext, payload: dict[str, Any]) -> None:
        raise ValueError(f"{payload['card']} is refused")

    masked, plain = (bench.create(payload={**BIG, "card": "canary-4711"}) for _ in range(2))
    bench.execute([masked], masked_paths="card", **kept)
    bench.execute([plain], **kept)
    assert [each.message for each in bench.attempts(masked)] == ["***"]
    assert [each.message for each in bench.attempts(plain)] == ["canary-4711 is refused"]
    assert "canary" not in caplog.text
    assert "ValueError: ***" in caplog.text
