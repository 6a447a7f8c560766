"""The README is short, and true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tasks_app import Settings, create_task, get_task
from tasks_app.domain.tasks.states import State
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.testing import drain
from tests.docs.reading import PROJECT, blocks, text_of

README = text_of("README.md")
FIRST, MAIL = blocks(README, "python")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "readme_order"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def no_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry without what other tests declared."""
    monkeypatch.setattr(HANDLERS, "specs", {})


def test_it_is_shorter_than_ten_kilobytes() -> None:
    assert len(README.encode()) < 10_000


def test_it_has_fewer_than_180_lines() -> None:
    assert len(README.splitlines()) < 180


def test_its_first_screen_is_why_and_code_and_two_commands_and_a_picture() -> None:
    why, code, *_ = screen = README.split("\n## ")[0].split("```")

    assert len(README.split("\n## ")[0].splitlines()) <= 45
    assert len(re.findall(r"\.(?:\s|$)", why)) == 3
    assert code == f"python\n{FIRST}"
    assert len([line for line in FIRST.splitlines() if line]) <= 10
    assert screen[3].count("$ make ") == 2
    assert "pending pool" in screen[5]


@pytest.mark.usefixtures("no_handlers")
def test_its_first_code_runs(engine: Engine, database_url: str) -> None:
    sent: list[int] = []
    names: dict[str, Any] = {"mail_receipt": lambda order_id, key: sent.append(order_id)}
    exec(compile(FIRST, "README.md", "exec"), names)
    Base.metadata.create_all(engine)
    try:
        names["buy"](engine, Order())  # the database gives the id
        drain(Settings(database_url=database_url))
    finally:
        Base.metadata.drop_all(engine)

    assert sent == [1]


@pytest.mark.test_all
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


@pytest.mark.test_all
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

    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
    drain(Settings(database_url=database_url))

    with engine.connect() as connection:
        assert get_task(connection, put_off).state is State.SUCCEEDED


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


@pytest.mark.test_all
def test_a_producer_imports_no_celery() -> None:
    check = (
        "import sys; from tasks_app import *;"
        " sys.exit(bool({'celery', 'kombu', 'redis'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_its_promises_are_numbered_as_everywhere() -> None:
    assert re.findall(r"^- \*\*(P\d)\*\*", README, re.MULTILINE) == [f"P{n}" for n in range(1, 7)]
