"""Which Celery tasks run from the pool, and how runs end that plain Celery does not know."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task, current_app, signature
from celery.exceptions import Reject, Retry
from sqlalchemy import Engine, text

from tasks_app import Settings, Snooze, create_task, handler, requeue_task
from tasks_app.broker.task_loading import load_tasks
from tasks_app.celery_tasks import run_from_pool
from tasks_app.domain.errors import ConfigurationError, HandlerError
from tasks_app.domain.tasks import records
from tasks_app.pool.tasks import browse
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.testing import drain

app = Celery("office", broker="redis://nowhere", set_as_current=False)
seen: list[Any] = []


@app.task(name="office.file", bind=True)
def file(self: Task, *args: Any, **kwargs: Any) -> Any:
    seen.append(self.request.retries)
    return deed(self, *args, **kwargs)


deed: Any = None


@app.task(name="office.limited", rate_limit="10/m")
def limited() -> None: ...


@app.task(name="office/wrong name")
def misnamed() -> None: ...


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HANDLERS, "specs", {})
    seen.clear()
    run_from_pool(file)


class Pool:
    """Rows of ``office.file``, and what the task does."""

    def __init__(self, engine: Engine, url: str, patch: pytest.MonkeyPatch) -> None:
        self.engine = engine
        self._settings = Settings(database_url=url)
        self._patch = patch

    def does(self, deed: Any) -> None:
        self._patch.setitem(globals(), "deed", deed)

    def create(self, *args: Any, **options: Any) -> int:
        with self.engine.begin() as connection:
            return create_task(connection, file, args=args, **options)

    def run(self, *args: Any, **options: Any) -> records.Task:
        """Create one and run what is due, waits left out."""
        task_id = self.create(*args, **options)
        drain(self._settings)
        return self.task(task_id)

    def drain(self) -> None:
        drain(self._settings)

    def task(self, task_id: int) -> records.Task:
        with self.engine.connect() as connection:
            task = browse.get(connection, task_id)
        assert task is not None
        return task

    def wait_s(self) -> float:
        with self.engine.connect() as connection:
            due = text("SELECT extract(epoch FROM due_at - now()) FROM task_pending")
            return float(connection.execute(due).scalar_one())


@pytest.fixture
def pool(engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Pool:
    return Pool(engine, database_url, monkeypatch)


# -- which tasks


def test_all_tasks_of_an_app_are_taken_but_celerys_and_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run_from_pool(app)
    assert {"office.file", "office.limited"} <= set(HANDLERS.names)
    assert not [name for name in HANDLERS.names if name.startswith(("celery.", "tasks_app."))]
    assert "office.limited runs without" in caplog.text
    assert "name is 'office/wrong name'" in caplog.text


def test_taking_them_twice_is_harmless() -> None:
    run_from_pool(app, file)
    run_from_pool(app)
    assert HANDLERS.names.count("office.file") == 1


def test_a_handler_of_the_same_name_is_a_conflict() -> None:
    handler("office.limited")(lambda ctx: None)
    with pytest.raises(HandlerError, match=r"office\.limited is handled by"):
        run_from_pool(limited)


def test_the_setting_takes_the_app_as_celery_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "office_project").mkdir()
    (tmp_path / "office_project" / "__init__.py").write_text("")
    (tmp_path / "office_project" / "celery.py").write_text(
        "from celery import Celery\n"
        "app = Celery('office_project', include=['office_project.jobs'])\n"
    )
    (tmp_path / "office_project" / "jobs.py").write_text(
        "from celery import shared_task\n"
        "from office_project.celery import app\n"
        "@app.task\ndef one(): pass\n"
        "@shared_task\ndef two(): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    before = current_app._get_current_object()

    load_tasks(Settings(celery_app="office_project"))

    assert {"office_project.jobs.one", "office_project.jobs.two"} <= set(HANDLERS.names)
    assert current_app._get_current_object() is before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module", "names no_such_module, which cannot be found"),
        ("no_such.deeper:app", "names no_such.deeper:app, which cannot be found"),
        ("json", "names json, which cannot be found"),
        ("json:dumps", "names json:dumps, which isn't a Celery app"),
    ],
)
def test_an_app_that_is_not_there_is_said(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load_tasks(Settings(celery_app=name))


def test_an_import_error_inside_of_the_app_comes_out_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "office_broken.py").write_text("import not_installed_here\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="not_installed_here"):
        load_tasks(Settings(celery_app="office_broken"))


@pytest.mark.test_all
@pytest.mark.test_all
def test_a_worker_without_a_broker_runs_them_too(
    pool: Pool, database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "plain_project.py").write_text(
        "from celery import Celery\n"
        "app = Celery('plain_project')\n"
        "@app.task(bind=True)\ndef double(self, n): return [2 * n, self.request.id]\n"
    )
    with pool.engine.begin() as connection:
        task_id = create_task(connection, "plain_project.double", args=[21])
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TASKS_APP_")}

    subprocess.run(
        [sys.executable, "-m", "tasks_app", "work", "--drain"],
        env={
            **kept,
            "TASKS_APP_DATABASE_URL": database_url,
            "TASKS_APP_CELERY_APP": "plain_project",
            "PYTHONPATH": str(tmp_path),
        },
        check=True,
        timeout=60,
    )

    assert pool.task(task_id).result == [42, str(task_id)]


# -- how runs end


def raises(error: BaseException) -> Any:
    def deed(self: Task) -> None:
        raise error

    return deed


def in_five_minutes(zone: Any) -> datetime:
    return (datetime.now(UTC) + timedelta(minutes=5)).replace(tzinfo=zone)


@pytest.mark.parametrize(
    ("deed", "failures", "least", "most"),
    [
        (lambda self: self.retry(countdown=600, exc=ValueError("busy")), 1, 590, 600),
        (lambda self: self.retry(), 1, 170, 180),
        (lambda self: self.retry(eta=in_five_minutes(UTC)), 1, 280, 300),
        (lambda self: self.retry(eta=in_five_minutes(None)), 1, 280, 300),
        (raises(Reject("busy", requeue=True)), 0, 0, 1),
        (raises(Retry("later", when=60)), 1, 50, 60),  # a broker would have forgotten it
        (raises(Snooze("1h")), 0, 3000, 3600),
    ],
    ids=["countdown", "own delay", "aware eta", "naive eta", "reject", "raised retry", "snooze"],
)
def test_what_comes_back_waits_as_it_says(
    pool: Pool, deed: Any, failures: int, least: float, most: float
) -> None:
    pool.does(deed)
    task = pool.run()
    assert (task.state, task.failures, task.max_attempts) == ("PENDING", failures, 4)
    assert least < pool.wait_s() <= most


def test_a_retry_says_so_in_its_attempt(pool: Pool) -> None:
    pool.does(lambda self: self.retry(countdown=600, exc=ValueError("busy")))
    task = pool.run()
    with pool.engine.connect() as connection:
        (line,) = browse.failed_attempts(connection, task.id)
    assert (line.event, line.message) == ("retry", "Retry in 600s: ValueError('busy')")


def test_a_limit_of_the_row_holds_beside_the_tasks_own(pool: Pool) -> None:
    pool.does(lambda self: self.retry(countdown=0))
    task = pool.run(max_attempts=2)
    assert (task.state, task.failures, seen) == ("FAILED", 2, [0, 1])


@pytest.mark.test_all
def test_after_a_requeue_retries_count_from_nothing(pool: Pool) -> None:
    pool.does(lambda self: self.retry(countdown=0))
    task = pool.run()
    with pool.engine.begin() as connection:
        requeue_task(connection, task.id)
    pool.drain()
    assert (pool.task(task.id).state, seen) == ("FAILED", [0, 1, 2, 3] * 2)
    assert "MaxRetriesExceededError" in (pool.task(task.id).error or "")


def test_changed_arguments_stay_changed_after_a_requeue(pool: Pool) -> None:
    def count(self: Task, n: int) -> int:
        if n < 3:
            self.retry(args=(n + 1,), countdown=0)
        return n

    pool.does(count)
    task = pool.run(1)
    assert (task.result, task.payload) == (3, {"args": [3], "kwargs": {}})


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        (lambda self: self.retry(queue="other"), "cannot carry out self.retry(queue=…)"),
        (lambda self: self.retry(priority=3), "cannot carry out self.retry(priority=…)"),
        (lambda self: self.replace(signature("office.file", app=app)), "self.replace does not"),
        (lambda self: self.add_to_chord(file.s()), "not member of any chord"),
        (lambda self: self.retry(args=({1},), countdown=0), "payload.args[0] is of type set"),
        (lambda self, missing: None, "TypeError"),
    ],
)
def test_what_only_messages_can_do_fails_and_says_so(pool: Pool, deed: Any, said: str) -> None:
    pool.does(deed)
    task = pool.run()
    assert (task.state, task.failures) == ("FAILED", 1)
    assert said in (task.error or "")


def test_update_state_without_a_backend_does_nothing(pool: Pool) -> None:
    pool.does(lambda self: self.update_state(state="PROGRESS", meta={"done": 1}))
    assert pool.run().state == "SUCCEEDED"


def test_a_run_can_write_in_the_transaction_of_its_outcome(pool: Pool) -> None:
    def write(self: Task) -> None:
        create_task(self.request.pool_run.context.session, "follower")

    pool.does(write)
    assert pool.run().state == "SUCCEEDED"
    with pool.engine.connect() as connection:
        assert connection.execute(text("SELECT name FROM task_pending")).scalar() == "follower"


def test_celerys_current_app_and_task_are_those_of_the_run(pool: Pool) -> None:
    before = current_app._get_current_object()
    pool.does(
        lambda self: [current_app.main, current_app.current_task.name, len(self.request_stack)]
    )
    task = pool.run()
    assert task.result == ["office", "office.file", 1]
    assert current_app._get_current_object() is before
    assert not file.request_stack.top


def test_a_row_that_cannot_be_a_call_hurts_only_itself(pool: Pool) -> None:
    pool.does(lambda self: None)
    with pool.engine.begin() as connection:
        insert = "INSERT INTO task_pending (name, payload) VALUES ('office.file', :p) RETURNING id"
        bad = [
            connection.execute(text(insert), {"p": p}).scalar_one()
            for p in ('{"order": 1}', '{"args": 1}', '{"args": [{"__type__":"x","__value__":1}]}')
        ]
    good = pool.create()
    pool.drain()
    assert [pool.task(i).state for i in (*bad, good)] == ["FAILED"] * 3 + ["SUCCEEDED"]
    assert "payload.order is refused" in (pool.task(bad[0]).error or "")


def test_what_a_run_returns_or_raises_is_not_in_the_log(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(self: Task, secret: str) -> None:
        raise ValueError(secret)

    with caplog.at_level(logging.DEBUG):
        pool.does(lambda self, secret: secret)
        pool.run("hunter2")
        pool.does(raises)
        task = pool.run("hunter2")
    assert "hunter2" not in caplog.text
    assert task.error == "ValueError: hunter2"


def test_other_runs_of_the_task_in_this_process_are_celerys(pool: Pool) -> None:
    pool.does(lambda self: self.request.id)
    pool.run()
    assert file.apply(task_id="mine").get() == "mine"
    assert file() is None
