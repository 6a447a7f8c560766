"""``result_backend = "tasks_app://"``: what AsyncResult says of a row in each of its states."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery, Task, chord
from celery.exceptions import Ignore, TaskRevokedError, TimeoutError, WorkerLostError  # noqa: A004
from celery.result import AsyncResult, GroupResult, ResultSet
from sqlalchemy import Engine, text
from sqlalchemy.exc import InternalError

from tasks_app import Settings, cancel_task, create_task, get_task, requeue_task
from tasks_app.broker import results
from tasks_app.broker.results import PoolBackend
from tasks_app.celery_tasks import OutboxTask, PoolResult, outbox, run_from_pool
from tasks_app.pool.runs.heartbeats import write_heartbeat
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.testing import drain

app = Celery("shop", broker="redis://nowhere", backend="tasks_app://", set_as_current=False)


class BankDownError(Exception):
    def __init__(self, bank: str) -> None:
        super().__init__(f"{bank} is down")


@app.task(name="results.do", bind=True, base=OutboxTask)
def do(self: Task, what: str = "", **given: Any) -> Any:
    match what:
        case "raise":
            raise {"key": KeyError("order 42"), "bank": BankDownError("mine")}[given["kind"]]
        case "retry":
            raise self.retry(countdown=60, exc=given.get("exc") and ValueError(given["exc"]))
        case "ignore":
            raise Ignore
        case "date":
            return {"at": datetime(2026, 7, 1, tzinfo=UTC)}
        case "id":
            return [self.request.id, self.request.root_id, self.request.headers]
    return what


class Shop:
    def __init__(self, engine: Engine, url: str) -> None:
        self.engine = engine
        self._settings = Settings(database_url=url)

    def call(self, *args: Any, options: Any = None, **kwargs: Any) -> PoolResult:
        with self.engine.begin() as connection, outbox(connection):
            return do.apply_async(args, kwargs, **(options or {}))

    def ran(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Call it and run it; return what another process makes of the id."""
        called = self.call(*args, **kwargs)
        self.drain()
        return app.AsyncResult(called.id)

    def drain(self) -> None:
        drain(self._settings)

    def sql(self, statement: str, **values: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement), values)

    def runs(self, called: PoolResult, shown: dict[str, Any]) -> AsyncResult:
        """Let a child of a worker run it, and show this in its heartbeat."""
        owner = "house@host:77:abc"
        self.sql(
            "UPDATE task_pending SET state = 'RUNNING', attempt = attempt + 1, owner = :owner,"
            " lease_token = gen_random_uuid(), lease_until = now() + interval '1h',"
            " started_at = now(), max_attempts = 3, at_most_once = false WHERE id = :id",
            owner=owner,
            id=called.task_id,
        )
        running = [{"id": called.task_id, "name": "results.do", "seconds": 1.0, **shown}]
        with self.engine.begin() as connection:
            write_heartbeat(
                connection, owner=owner, node="n", queues=[], handlers=[], running=running
            )
        return app.AsyncResult(called.id)


@pytest.fixture
def shop(engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(HANDLERS, "specs", {})
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", database_url)
    run_from_pool(do)
    results._engine.cache_clear()
    yield Shop(engine, database_url)
    results._engine(os.getpid()).dispose()
    results._engine.cache_clear()


def test_celery_finds_it_by_its_url() -> None:
    assert type(app.backend) is PoolBackend
    assert app.backend.as_uri() == "tasks_app://"


def test_a_task_waits_then_has_its_result(shop: Shop) -> None:
    called = shop.call("fine")
    waiting = app.AsyncResult(called.id)
    before = (waiting.state, waiting.info, waiting.ready(), waiting.children, waiting.date_done)
    with pytest.raises(TimeoutError):
        waiting.get(timeout=0.01, interval=0.01)
    shop.drain()

    assert before == ("PENDING", None, False, [], None)
    assert waiting.get(timeout=5, interval=0.01) == called.get() == waiting.info == "fine"
    assert (waiting.status, waiting.successful(), waiting.failed()) == ("SUCCESS", True, False)
    assert waiting.date_done == get_task(shop.engine.connect(), called.task_id).finished_at
    assert (waiting.children, waiting.traceback) == ([], None)


def test_an_id_that_nobody_knows_is_pending(shop: Shop) -> None:
    odd = ("7", 7, "mine", "9" * 30, "-1", "", "a\0b", "\N{ARABIC-INDIC DIGIT SEVEN}")
    assert {app.AsyncResult(given).state for given in odd} == {"PENDING"}


def test_special_values_come_back_as_from_celerys_backends(shop: Shop) -> None:
    assert shop.ran("date").get() == {"at": datetime(2026, 7, 1, tzinfo=UTC)}


def test_an_exception_is_raised_by_its_class_with_its_text_and_place(shop: Shop) -> None:
    failed = shop.ran("raise", kind="key")
    assert (failed.state, failed.failed(), failed.successful()) == ("FAILURE", True, False)
    with pytest.raises(KeyError) as raised:
        failed.get()
    assert str(raised.value) == "'order 42'"
    assert failed.get(propagate=False).args == ("order 42",)
    assert failed.traceback.startswith("Traceback (most recent call last):\n  File")
    assert failed.traceback.endswith("KeyError: 'order 42'")
    with pytest.raises(BankDownError, match="mine is down"):
        shop.ran("raise", kind="bank").get()


def test_a_class_that_this_process_lacks_is_made_by_its_name(shop: Shop) -> None:
    failed = shop.ran("raise", kind="bank")
    shop.sql("UPDATE task_attempt SET kind = 'elsewhere.errors.BankGoneError'")
    assert type(failed.info).__name__ == "BankGoneError"


def test_a_process_that_died_is_celerys_lost_worker(shop: Shop) -> None:
    failed = shop.ran("raise", kind="key")
    shop.sql("UPDATE task_attempt SET kind = 'process died', message = 'signal 9'")
    with pytest.raises(WorkerLostError, match="process died: signal 9"):
        failed.get()


def test_what_is_masked_stays_so(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKS_APP_MASKED_PATHS", "kwargs.exc")
    waiting = shop.ran("retry", exc="4711-0815")
    assert waiting.state == "RETRY"
    assert "4711" not in f"{waiting.info} {waiting.traceback}"


def test_a_retry_is_not_ready(shop: Shop) -> None:
    waiting = shop.ran("retry")
    assert (waiting.state, waiting.ready()) == ("RETRY", False)
    assert str(waiting.info).startswith("Retry in 60s")


def test_what_ends_without_an_outcome_is_revoked(shop: Shop) -> None:
    ignored, cancelled = shop.ran("ignore"), shop.call("fine")
    with shop.engine.begin() as connection:
        cancel_task(connection, cancelled.task_id)
    assert [each.state for each in (ignored, cancelled)] == ["REVOKED"] * 2
    assert str(ignored.info) == "skipped"
    with pytest.raises(TaskRevokedError, match="revoked"):
        cancelled.get()


def test_a_requeued_task_is_not_ready_again(shop: Shop) -> None:
    done = shop.ran("fine")
    assert done.get() == "fine"
    with shop.engine.begin() as connection:
        requeue_task(connection, int(done.id))
    assert app.AsyncResult(done.id).state == "RETRY"


def test_a_run_shows_what_update_state_said_in_this_attempt(shop: Shop) -> None:
    said = {"state": "PROGRESS", "details": {"current": 3, "total": 4}}
    called = shop.call("fine")
    assert shop.runs(called, {"attempt": 1, **said}).state == "PROGRESS"
    assert app.AsyncResult(called.id).info == {"current": 3, "total": 4}
    shop.sql("UPDATE task_pending SET attempt = 2")
    assert app.AsyncResult(called.id).state == "PENDING"


def test_a_run_is_started_where_celery_is_to_track_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = shop.runs(shop.call("fine"), {})
    before = running.state
    monkeypatch.setattr(do, "track_started", True)
    assert (before, running.state) == ("PENDING", "STARTED")
    assert running.info == {"pid": 77, "hostname": "house@host"}


def test_a_running_task_is_not_ready_whatever_it_says(shop: Shop) -> None:
    said = {"attempt": 1, "state": "SUCCESS", "details": "early"}
    assert shop.runs(shop.call("fine"), said).state == "PENDING"


def test_a_task_id_is_the_callers(shop: Shop) -> None:
    called = shop.call("id", options={"task_id": "mine", "headers": {"tenant": "a"}})
    again = shop.call("id", options={"task_id": "mine"})
    assert (called.id, again.task_id) == ("mine", called.task_id)
    shop.drain()
    assert app.AsyncResult("mine").get() == ["mine", "mine", {"tenant": "a"}]
    assert app.AsyncResult(str(called.task_id)).state == "SUCCESS"


def test_a_task_id_runs_again_once_it_is_over_and_names_the_newest(shop: Shop) -> None:
    first = shop.call("fine", options={"task_id": "mine"})
    shop.drain()
    second = shop.call("better", options={"task_id": "mine"})
    assert (second.task_id > first.task_id, app.AsyncResult("mine").state) == (True, "PENDING")
    shop.drain()
    assert app.AsyncResult("mine").get() == "better"


def test_a_linked_task_and_one_of_a_chain_have_theirs(shop: Shop) -> None:
    canvas = do.si("a").set(task_id="a", link=do.si("b").set(task_id="b")) | do.s().set(task_id="c")
    with shop.engine.begin() as connection:
        create_task(connection, canvas)
    shop.drain()
    found = {name: app.AsyncResult(name).get() for name in "abc"}
    assert found == {"a": "a", "b": "b", "c": "a"}


def test_headers_of_the_call_are_kept_beside_the_id(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        signature = do.s("id").set(task_id="mine")
        create_task(connection, signature, headers={"tenant": "b"})
    shop.drain()
    assert app.AsyncResult("mine").get() == ["mine", "mine", {"tenant": "b"}]


def test_a_row_of_another_with_this_biz_key_is_not_it(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        create_task(connection, do, biz_key="mine", unique_key="mine")
    shop.drain()
    assert app.AsyncResult("mine").state == "PENDING"


def test_several_results_are_waited_for(shop: Shop) -> None:
    called = [shop.call(word) for word in "abc"]
    shop.drain()
    assert ResultSet(called, app=app).get() == ["a", "b", "c"]


def test_it_never_writes(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    result = shop.ran("fine")
    for _ in range(2):
        app.backend.store_result(result.id, "other", "FAILURE", request=do.request)
    result.forget()
    assert result.get() == "fine"
    assert caplog.text.count("tasks_app:// only reads the pool") == 1
    with (
        results._engine(os.getpid()).begin() as connection,
        pytest.raises(InternalError, match="read-only"),
    ):
        connection.execute(text("DELETE FROM task_completed"))


def test_what_needs_a_store_is_refused_by_name(shop: Shop) -> None:
    for refused in (
        lambda: chord([do.s()], do.s()).apply_async(),
        lambda: app.backend.apply_chord(("id", []), do.s()),
    ):
        with pytest.raises(NotImplementedError, match="Give it to create_task"):
            refused()
    for refused in (GroupResult("g", [], app=app).save, lambda: GroupResult.restore("g", app=app)):
        with pytest.raises(NotImplementedError, match="stores no GroupResult"):
            refused()
