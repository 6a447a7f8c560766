"""The README is short, and true; so are the examples that open docs/producing.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection

from tasks_app import create_task, get_task
from tests.docs.reading import blocks, text_of
from tests.docs.terminal import Terminal, free_port
from tests.docs.test_tutorial import Reader

README = text_of("README.md")
PRODUCING = text_of("docs/producing.md")


def test_it_is_shorter_than_ten_kilobytes() -> None:
    assert len(README.encode()) < 10_000


def test_it_has_at_most_130_lines() -> None:
    assert len(README.splitlines()) <= 130


def test_it_begins_with_three_sentences_and_a_program() -> None:
    why, code, _ = README.split("```", 2)

    assert len(re.findall(r"\.(?:\s|$)", why)) == 3
    assert code.startswith("python\n# shop.py\n")


@pytest.mark.test_all
@pytest.mark.timeout(300, method="thread")
def test_the_program_and_the_first_steps_work_as_they_are_printed(open_folder: Path) -> None:
    with Terminal(open_folder) as terminal:
        try:
            Reader(terminal, open_folder, free_port()).follow(README)
        finally:
            terminal.type("tasks-app down")


def test_a_refusal_reads_as_printed(connection: Connection) -> None:
    (session,) = blocks(PRODUCING, "pycon")
    call, answer = session.removeprefix(">>> ").splitlines()

    with pytest.raises(ValueError, match="payload") as refusal:
        eval(call, {"create_task": create_task, "session": connection})

    assert f"{type(refusal.value).__name__}: {refusal.value}" == answer


def test_a_task_is_created_from_sql(connection: Connection) -> None:
    (statement,) = blocks(PRODUCING, "sql")

    task = get_task(connection, connection.exec_driver_sql(statement).scalar_one())

    assert (task.name, task.payload, task.biz_key) == ("mail.send", {"to": "ann"}, "order:42")
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
