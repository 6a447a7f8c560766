"""The README is short, and true."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine

from tasks_app import Settings, create_task, get_task
from tasks_app.domain.tasks.states import State
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.testing import drain
from tests.docs.reading import PROJECT, blocks, text_of

README = text_of("README.md")
HELLO, MAIL = blocks(README, "python")


def _bare(source: str) -> str:
    """Code without docstrings and without the future."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            body[0:1] = []
    tree.body = [node for node in tree.body if not _is_future(node)]
    return ast.unparse(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_future(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


@pytest.fixture
def no_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry without what other tests declared."""
    monkeypatch.setattr(HANDLERS, "_specs", {})


def test_it_is_shorter_than_ten_kilobytes() -> None:
    assert len(README.encode()) < 10_000


def test_its_first_screen_ends_with_the_first_own_task() -> None:
    beginning = README.split("```python\n")[0] + "```python\n" + HELLO + "```\n"

    assert README.startswith(beginning)
    assert len(beginning.splitlines()) <= 40


def test_its_first_task_is_the_one_of_the_examples() -> None:
    assert _bare(HELLO) == _bare(text_of("examples/hello.py"))


@pytest.mark.processes
def test_the_first_steps_work_as_they_are_printed(open_folder: Path) -> None:
    steps = next(block for block in blocks(README, "bash") if "examples/hello.py" in block)
    (open_folder / ".venv").symlink_to(sys.prefix)
    (open_folder / "examples").symlink_to(PROJECT / "examples")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TASKS_APP_", "PYTHONPATH"))}

    try:
        done = subprocess.run(
            ["bash", "-ec", steps],
            cwd=open_folder,
            env=clean,
            check=False,
            capture_output=True,
            text=True,
            timeout=100,
        )
    finally:
        subprocess.run(
            [sys.executable, "-m", "tasks_app", "down"], cwd=open_folder, env=clean, check=True
        )

    assert done.returncode == 0, done.stderr
    assert "SUCCEEDED" in done.stdout
    assert "hello.say" in done.stdout


@pytest.mark.usefixtures("no_handlers")
def test_the_handler_in_the_middle_runs(
    engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"__name__": "mails"}
    exec(compile(MAIL, "README.md", "exec"), names)
    with engine.begin() as connection:
        sent = create_task(connection, names["send_mail"], {})
        put_off = create_task(connection, names["send_mail"], {"later": True})

    drain(Settings(database_url=database_url))

    with engine.connect() as connection:
        assert get_task(connection, sent).state is State.SUCCEEDED
        snoozed = get_task(connection, put_off)
        assert (snoozed.state, snoozed.failures) == (State.PENDING, 0)
        assert snoozed.queue == "mail"


def test_a_refusal_reads_as_printed(connection: Connection) -> None:
    (session,) = blocks(README, "pycon")
    call, answer = session.removeprefix(">>> ").splitlines()

    with pytest.raises(ValueError, match="payload") as refusal:
        eval(call, {"create_task": create_task, "session": connection})

    assert f"{type(refusal.value).__name__}: {refusal.value}" == answer


def test_a_task_is_created_from_sql(connection: Connection) -> None:
    (statement,) = blocks(README, "sql")

    task = get_task(connection, connection.exec_driver_sql(statement).scalar_one())

    assert (task.name, task.payload, task.biz_key) == ("hello.say", {"name": "SQL"}, "order:42")
    assert (task.due_at - task.created_at).total_seconds() == 5


def test_a_producer_imports_no_celery() -> None:
    check = (
        "import sys; from tasks_app import *;"
        " sys.exit(bool({'celery', 'kombu', 'redis'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_its_promises_are_numbered_as_everywhere() -> None:
    screen = README.split("```")[0]

    assert [f"**P{n}**" in screen for n in range(1, 7)] == [True] * 6
