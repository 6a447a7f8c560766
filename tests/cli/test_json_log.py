"""What real processes of ``tasks-app work`` and Celery log as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tasks_app import create_task
from tasks_app.embedded.servers import Valkey
from tests.broker.celery_process import CeleryProcess
from tests.cli.shell import Shell
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]
CANARY = "4111-canary"
HANDLERS = """
from tasks_app import handler

@handler("log.charge", retry="0s")
def charge(ctx, payload):
    ctx.log.info("charging", extra={"payload": payload})
    raise ValueError(f"refused {payload['card']}")
"""


def json_lines(said: str) -> list[dict[str, Any]]:
    """Every line that begins as an object is one; the banner and the like are left out."""
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def about(lines: list[dict[str, Any]], logger: str) -> dict[str, Any]:
    return next(each for each in lines if each["logger"] == logger and "task_id" in each)


def make_task(engine: Engine) -> int:
    with engine.begin() as connection:
        return create_task(connection, "log.charge", {"card": CANARY}, biz_key="order:7")


def check(lines: list[dict[str, Any]], task_id: int, owner: str, said: str) -> None:
    run = {"task_id": task_id, "name": "log.charge", "queue": "default", "biz_key": "order:7"}
    for logger in ("tasks_app.handlers", "tasks_app.attempts"):
        found = about(lines, logger)
        assert {**found, **run} == found
        assert found["attempt"] >= 1
    assert about(lines, "tasks_app.handlers")["message"] == "charging"
    assert owner in {each["worker"] for each in lines}
    assert CANARY not in said


def owner_of(engine: Engine, task_id: int) -> str:
    with engine.connect() as connection:
        asked = text("SELECT owner FROM task_error WHERE id = :id")
        return str(connection.execute(asked, {"id": task_id}).scalar())


def test_work_writes_json_alone(
    shell: Shell, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log_handlers.py").write_text(HANDLERS)
    monkeypatch.setenv("TASKS_APP_IMPORTS", "log_handlers")
    monkeypatch.setenv("TASKS_APP_LOG_FORMAT", "json")
    task_id = make_task(engine)

    done = shell.process("work", "--drain", "-c", "1")

    assert done.returncode == 0
    assert all(line.startswith("{") for line in done.stderr.splitlines()), done.stderr
    check(json_lines(done.stderr), task_id, owner_of(engine, task_id), done.stderr)


def test_a_celery_worker_and_beat_write_json(
    engine: Engine, database_url: str, broker: Valkey, tmp_path: Path
) -> None:
    (tmp_path / "log_handlers.py").write_text(HANDLERS)
    environment = {
        "TASKS_APP_DATABASE_URL": database_url,
        "TASKS_APP_BROKER_URL": broker.url,
        "TASKS_APP_IMPORTS": "log_handlers",
        "TASKS_APP_LOG_FORMAT": "json",
        "PYTHONPATH": str(tmp_path),
    }
    started = [
        CeleryProcess(tmp_path / "worker", environment, "-q", "worker", "-c", "1", "-l", "info"),
        CeleryProcess(tmp_path / "beat", environment, "-q", "beat", "-l", "info"),
    ]
    worker, beat = started
    try:
        task_id = make_task(engine)
        worker.says("and it is over", 60)
        until(lambda: bool(json_lines(beat.log())), 30)
    finally:
        for process in started:
            process.end()

    check(json_lines(worker.log()), task_id, owner_of(engine, task_id), worker.log())
    logged = worker.log()[worker.log().index("{") :]  # Celery warns of root before it logs
    assert all(line.startswith("{") for line in logged.splitlines())
