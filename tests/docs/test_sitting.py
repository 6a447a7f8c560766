"""Commands between ``<!-- sitting -->`` marks are typed anew, and answer what the page shows.

All of a page are typed into one empty pool. ``SITTING=write`` writes today's answers into the page.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import pytest
from sqlalchemy import Engine, text

from tasks_app import Breaker, NewTask, create_group, locks
from tasks_app.cli.group import group
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.flow_control import circuit_breakers
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_one
from tests.cli.conftest import shell  # noqa: F401  a fixture
from tests.cli.shell import Shell
from tests.docs.reading import DOCUMENTS, PROJECT
from tests.factory import claimer, ending

BLOCK = re.compile(
    r"(?<=<!-- sitting: begin -->\n```console\n).*?(?=```\n<!-- sitting: end -->)", re.S
)
PAGES = [page for page in DOCUMENTS if BLOCK.search(page.read_text())]
NUMBERS = (
    r"\bjust now\b|\bin \d+ (s|min|h)\b|\b\d+ (s|min|h) ago\b",
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?([+-]\d\d:\d\d|Z| UTC)?",
    r"\b\d+(\.\d+)? ?(ms|s|MiB|KiB|B)\b",
    r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
    r"\S+@\S+",
)
"""What is different every time: instants, spans, keys, who sits where."""


def failed(engine: Engine, task_id: int) -> None:
    with engine.begin() as connection:
        (task,) = claim(connection, [task_id], claimer("mail.send"), uuid4(), admitted=True)
        cause = Cause("SMTPServerDisconnected", "Connection unexpectedly closed")
        settle_one(connection, ending(task, Event.FAIL, failures=1, cause=cause))


def grouped(engine: Engine) -> None:
    with engine.begin() as connection:
        members = [NewTask("points.grant", {"order_id": number}) for number in (7, 8)]
        create_group(connection, members, then=NewTask("report.make"))


def depending(engine: Engine) -> None:
    with engine.begin() as connection:
        circuit_breakers.synchronise(connection, {Breaker("bank"): ["bank.pay"]}, ["bank.pay"])


def teller(engine: Engine) -> None:
    TAKEN.append(locks.hold(engine, exclusive="account:7", who="teller").take())


TAKEN: list[Any] = []
SCENES: dict[str, Callable[[Engine], Any]] = {
    "a worker runs task 1 in vain": lambda engine: failed(engine, 1),
    "a program creates a group": grouped,
    "a teller takes a lock on account:7": teller,
    "a worker starts whose handler bank.pay depends on the bank": depending,
}


@pytest.fixture
def run(shell: Shell, engine: Engine) -> Iterator[Shell]:  # noqa: F811
    with engine.begin() as connection:
        for table in ("task_pending", "task_audit", "task_group"):
            sequence = f"pg_get_serial_sequence('{table}', 'id')"
            connection.execute(text(f"SELECT setval({sequence}, 1, false)"))
    yield shell
    for lock in TAKEN:
        with suppress(locks.LockLostError):
            lock.release()
    TAKEN.clear()


def typed(script: str, run: Shell, engine: Engine) -> str:
    lines: list[str] = []
    for line in script.splitlines():
        if line.startswith("# "):
            SCENES[line[2:]](engine)
        elif line.startswith("$ "):
            done = run(*shlex.split(line[2:])[1:])
            lines += [line, *(done.stdout + done.stderr).rstrip("\n").splitlines()]
            continue
        else:
            continue
        lines.append(line)
    return "\n".join(each.rstrip() for each in lines) + "\n"


def timeless(transcript: str) -> str:
    for pattern in NUMBERS:
        transcript = re.sub(pattern, "…", transcript)
    return re.sub(r" +|-{2,}", " ", transcript)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_the_commands_answer(
    page: Path, run: Shell, engine: Engine
) -> None:
    shown = page.read_text()

    answered = BLOCK.sub(lambda block: typed(block[0], run, engine), shown)

    if os.environ.get("SITTING") == "write":
        page.write_text(answered)
    else:
        assert timeless(answered) == timeless(shown)


def verbs(command: click.Command, *before: str) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            names = command.list_commands(context)
            some = [(name, command.get_command(context, name)) for name in names]
        shown = [(name, each) for name, each in some if each and not each.hidden]
        yield from chain.from_iterable(verbs(each, *before, name) for name, each in shown)
    else:
        yield before


@pytest.mark.parametrize("verb", list(verbs(group)), ids=" ".join)
def test_each_command_is_on_a_page(verb: tuple[str, ...]) -> None:
    written = (page for page in (PROJECT / "docs").rglob("*.md") if page.parent.name != "reference")
    pages = "\n".join(page.read_text() for page in written)
    shown = re.search(rf"^\$ tasks-app {' '.join(verb)}\b", pages, re.M)

    assert shown or f"`tasks-app {' '.join(verb)}" in pages
