"""Of each row of the guides both columns run: theirs in its own environment, ours on the pool."""

from __future__ import annotations

import asyncio
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from tasks_app.embedded.stack import Stack
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.hooks import HOOKS
from tests.docs.reading import section, text_of
from tests.environment import run_program
from tests.peers import play
from tests.peers.preludes import MORE_OF_OURS, OURS, OUTBOX_SETTINGS, PROGRAMS, THEIRS
from tests.peers.shops import programs_of, version_of

PAGES = sorted(THEIRS)


@pytest.mark.parametrize("page", PAGES)
def test_our_column_runs(page: str, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HANDLERS, "specs", {})
    monkeypatch.setattr(HOOKS, "_subscribers", {})
    snippets = code_of([row.ours for row in table_of(page)])
    with Session(engine) as session:
        names: dict[str, Any] = {"__name__": "guide", "session": session}
        errors = asyncio.run(play.try_all(OURS + MORE_OF_OURS.get(page, ""), snippets, names))
    assert len(snippets) > 10
    assert errors == {}


@pytest.mark.test_all
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.timeout(300, method="thread")
def test_their_column_runs_in_their_own_package(page: str, stack: Stack, engine: Engine) -> None:
    programs = programs_of(page)
    snippets = code_of([row.theirs for row in table_of(page)])
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    done = run_program(
        [programs / "python", Path(play.__file__)],
        input=json.dumps({"prelude": THEIRS[page], "snippets": snippets}),
        env={**os.environ, "PGDSN": url, "REDIS": stack.urls.broker},
        timeout=120,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert len(snippets) > 5
    assert json.loads(done.stdout.splitlines()[-1]) == {}


@pytest.mark.test_all
@pytest.mark.parametrize("page", PAGES)
def test_their_commands_exist_with_their_options(page: str, tmp_path: Path) -> None:
    programs = programs_of(page)
    begins, (program, *arguments) = PROGRAMS[page]
    named = commands_of([row.theirs for row in table_of(page)], begins)
    (tmp_path / "outbox_settings.py").write_text(OUTBOX_SETTINGS)
    django = {"PYTHONPATH": str(tmp_path), "DJANGO_SETTINGS_MODULE": "outbox_settings"}

    assert named
    for command, options in named:
        helped = run_program(
            [programs / program, *arguments, command, "--help"],
            env={**os.environ, **django, "COLUMNS": "200", "NO_COLOR": "1"},
            timeout=60,
        )
        assert helped.returncode == 0, (command, helped.stderr)
        known = set(re.findall(r"--?[a-z][a-z-]*", helped.stdout))
        assert options <= known, command


@pytest.mark.parametrize("page", PAGES)
def test_a_guide_is_about_the_version_that_it_was_tried_with(page: str) -> None:
    [named] = re.findall(r"^Read: \S+ ([\d.]+\d),", text_of(f"docs/from/{page}.md"), re.MULTILINE)
    assert named == version_of(page)


@pytest.mark.parametrize("page", PAGES)
def test_a_guide_says_who_should_not_move_and_what_is_lost(page: str) -> None:
    guide = text_of(f"docs/from/{page}.md")
    assert 10 <= len(table_of(page)) <= 25
    assert "**Move**" in guide
    assert "**Stay**" in guide
    assert all(f"\n## {heading}\n" in guide for heading in ("What you lose", "What you gain"))
    assert len(re.findall(r"^- ", guide.split("## What you gain")[1], re.MULTILINE)) <= 5


def test_every_guide_is_in_the_contents() -> None:
    contents = text_of("docs/from/README.md")
    assert all(f"({page}.md)" in contents for page in (*PAGES, "celery"))


HEADING = "What you write, what it becomes"
PYTHON = re.compile(r"^(?:@|await |raise |with )|\w\(|^(?:ctx|app|job)\.\w")


@dataclass(frozen=True, slots=True)
class Row:
    """What a subject is there and here, in Markdown."""

    subject: str
    theirs: str
    ours: str


def table_of(page: str) -> list[Row]:
    lines = section(text_of(f"docs/from/{page}.md"), HEADING).splitlines()
    cells = [[c.strip() for c in line.strip("|").split(" | ")] for line in lines if line[:1] == "|"]
    return [Row(*each) for each in cells[2:]]


def code_of(cells: list[str]) -> list[str]:
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell) if _is_python(code)]


def commands_of(cells: list[str], program: str) -> list[tuple[str, set[str]]]:
    """Each of the program's subcommands in them, with the options given."""
    found = []
    for cell in cells:
        for code in re.findall(r"`([^`]+)`", cell):
            if code.startswith(f"{program} "):
                _, _, rest = code.partition(f"{program} ")
                words = rest.split()
                name = next(word for word in words if not word.startswith("-"))
                found.append((name, set(re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", rest))))
    return found


def _is_python(code: str) -> bool:
    return PYTHON.search(code) is not None and not re.match(
        r"(?:tasks-app|rq|pgq|procrastinate) ", code
    )
