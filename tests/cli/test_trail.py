"""Who did what to a task and why: told by each verb, kept in the audit, shown in the trail."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tasks_app.domain.operations import LONGEST_WHY
from tests.cli.shell import Shell
from tests.factory import pending_task
from tests.runtime.api.acts import failed_task, make

WHY = "the bank is back"
NAME = "trail.edited"
"""Other tests of this process have a handler of "t"."""
EDITED = f"""
from tasks_app import handler

@handler("{NAME}")
def edited(ctx, payload: dict):
    pass
"""


@pytest.fixture
def run(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    (tmp_path / "cli_trail.py").write_text(EDITED)
    monkeypatch.setenv("TASKS_APP_IMPORTS", "cli_trail")
    return shell


def told(run: Shell, task_id: int, what: str) -> list[dict[str, Any]]:
    return [each for each in run.json("show", str(task_id), "--trail") if each["what"] == what]


def subject(engine: Engine, action: str) -> int:
    with engine.begin() as connection:
        if action == "requeue":
            return failed_task(connection)
        return int(pending_task(connection, NAME))


VERBS = [("cancel",), ("requeue",), ("edit", "--set", "a=1"), ("hold",)]


@pytest.mark.parametrize("level", ["off", "all"])
@pytest.mark.parametrize("selected", [False, True])
@pytest.mark.parametrize("words", VERBS)
def test_the_reason_is_in_the_audit_and_in_the_trail(
    run: Shell,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    selected: bool,
    level: str,
) -> None:
    monkeypatch.setenv("TASKS_APP_TRANSITIONS", level)
    task_id = subject(engine, words[0])

    name = "t" if words[0] == "requeue" else NAME
    which = ("--name", name) if selected else (str(task_id),)
    done = run(*words, *which, "--why", WHY)

    assert done.returncode == 0, done.stderr
    assert f"why={WHY}" in run("audit").stdout
    (moment,) = told(run, task_id, words[0])
    assert moment["message"] == WHY
    assert "@" in moment["by"]
    shown = run("show", str(task_id), "--trail").stdout
    assert re.search(rf"{words[0]} .*@.* {WHY}", shown)
    with engine.connect() as connection:
        lines = connection.execute(
            text("SELECT who, why FROM task_transition WHERE event = :it"), {"it": words[0]}
        ).all()
    assert [why for _, why in lines] == ([WHY] if level == "all" else [])


def test_the_audit_names_the_id_beside_the_reason(run: Shell, engine: Engine) -> None:
    (task_id,) = make(engine, 1)
    run("cancel", str(task_id), "--why", WHY)
    assert f"ids=[{task_id}] why={WHY}" in run("audit").stdout


def test_a_long_reason_is_cut_and_one_that_cannot_be_stored_is_refused(
    run: Shell, engine: Engine
) -> None:
    one, other = make(engine, 2)
    assert run("cancel", str(one), "--why", "x" * 600).returncode == 0
    (moment,) = told(run, one, "cancel")
    assert moment["message"] == "x" * LONGEST_WHY
    refused = run("cancel", str(other), "--why", "\udcff")
    assert refused.returncode == 2
    assert "An argument is not UTF-8." in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_trail_fits_a_terminal_and_is_whole_in_a_pipe(
    run: Shell, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task_id,) = make(engine, 1)
    why = "the bank asks, " * 20
    run("hold", str(task_id), "--why", why)
    run("run-now", str(task_id))
    whole = run("show", str(task_id), "--trail").stdout
    monkeypatch.setenv("COLUMNS", "80")
    narrow = run("show", str(task_id), "--trail").stdout
    assert why.strip() in whole
    assert max(map(len, narrow.splitlines())) <= 80
    assert re.search(r"Z  hold .*\n    the bank asks, .* …\n", narrow)


def test_an_unknown_task_has_no_trail(run: Shell, engine: Engine) -> None:
    refused = run("show", "1000000000", "--trail")
    assert refused.returncode == 1
    assert "There is no task 1000000000" in refused.stderr


def test_tasks_are_listed_by_their_sub_status(run: Shell, engine: Engine) -> None:
    waits, _ = make(engine, 2)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE task_pending SET sub_status = 'waiting for bank' WHERE id = :id"),
            {"id": waits},
        )
    assert [task["id"] for task in run.json("list", "--sub-status", "waiting for bank")] == [waits]
    assert "waiting for bank" in run("list").stdout
    assert re.search(r"^sub_status +waiting for bank$", run("show", str(waits)).stdout, re.M)
    assert re.search(r"^updated_at +\d{4}-", run("show", str(waits)).stdout, re.M)
