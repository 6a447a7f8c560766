"""No command shows what a masked path holds, nor with ``--decrypt``."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text

from tasks_app import NewTask, create_group, create_schedule, create_task
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.settle import settle_one
from tests.cli.shell import Shell
from tests.factory import claimed_task, ending

PAYLOAD = {"card": {"number": "canary-4711", "owner": "Ann"}}
QUOTES = Cause("ValueError", "canary-4711 is refused")


@pytest.fixture(autouse=True)
def rules(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKS_APP_MASKED_PATHS", "card.number")


def test_show_and_list_hide_it_and_older_errors_that_quote_it(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        task_id = create_task(connection, "t", PAYLOAD)
        older = """INSERT INTO task_attempt (task_id, attempt, event, kind, message, ended_at)
                   VALUES (:id, 1, 'retry', 'ValueError', 'no canary-4711', now())"""
        connection.execute(text(older), {"id": task_id})

    for command in (("show", str(task_id)), ("list",)):
        for more in ((), ("--json",)):
            said = shell(*command, *more)
            assert said.returncode == 0
            assert "canary" not in said.stdout
    assert "Ann" in shell("show", str(task_id)).stdout
    assert "no ***" in shell("show", str(task_id)).stdout
    assert "canary" not in shell("show", str(task_id), "--trail").stdout


def test_schedules_hide_it(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        create_schedule(connection, "s", "t", PAYLOAD, every="1h")
    for command in (("schedules", "list", "--json"), ("schedules", "show", "s")):
        said = shell(*command)
        assert "canary" not in said.stdout
        assert "Ann" in said.stdout


@pytest.mark.test_all
def test_texts_that_were_stored_before_the_rule_are_hidden_too(
    shell: Shell, engine: Engine
) -> None:
    with engine.begin() as connection:
        group = create_group(connection, [NewTask("t", PAYLOAD)])
        failed = claimed_task(connection, group.task_ids[0])
        settle_one(connection, ending(failed, Event.FAIL, cause=QUOTES))
        retried = claimed_task(connection, payload=PAYLOAD)
        settle_one(connection, ending(retried, Event.RETRY, cause=QUOTES))
        query = text("SELECT encode(fingerprint, 'hex') FROM task_error")
        cause = connection.execute(query).scalar_one()

    for command in (
        ("errors",),
        ("errors", "show", cause),
        ("groups", "show", str(group.id)),
        ("explain", str(failed.fence.task_id)),
        ("explain", str(retried.fence.task_id)),
        ("list",),
        ("show", str(failed.fence.task_id), "--trail"),
    ):
        for more in ((), ("--json",)):
            said = shell(*command, *more)
            assert said.returncode == 0, command
            assert "canary" not in said.stdout, command
            assert "*** is refused" in said.stdout, command
