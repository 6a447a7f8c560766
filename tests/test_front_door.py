"""`import tasks_app` costs nothing, and shows all that there is."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tasks_app

SOURCE = ast.parse(Path(tasks_app.__file__).read_text())


def in_a_process_of_its_own(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_every_name_is_fetched_from_the_room_that_type_checkers_see() -> None:
    (for_type_checkers,) = [
        node for node in SOURCE.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    ]
    written = {
        (alias.name, node.module)
        for node in for_type_checkers.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tasks_app.")
        for alias in node.names
    }

    fetched = {(name, f"tasks_app.{room}") for name, room in tasks_app._HOME.items()}

    assert fetched == written
    assert tasks_app.__all__ == sorted(name for name, _ in written)
    for name, room in written:
        assert getattr(tasks_app, name) is getattr(sys.modules[room], name)


@pytest.mark.test_all
def test_the_package_alone_imports_nothing() -> None:
    """Every `celery` command and every probe passes here."""
    modules = "import sys; before = set(sys.modules); import tasks_app; "
    names = in_a_process_of_its_own(modules + "print(*sorted(set(sys.modules) - before))").split()

    assert [name for name in names if name != "__future__"] == ["tasks_app"]


SLOW = "alembic billiard celery click flower kombu psutil psycopg pydantic_settings redis rich"


@pytest.mark.test_all
def test_a_producer_imports_nothing_that_it_does_not_need() -> None:
    """Of these, psycopg and the settings come with the first task."""
    names = in_a_process_of_its_own(
        "import sys; from tasks_app import create_task, NewTask; print(*sys.modules)"
    ).split()

    assert {name.partition(".")[0] for name in names} & set(SLOW.split()) == set()
    assert "sqlalchemy.ext.asyncio" not in names
    assert len([name for name in names if name.startswith("tasks_app")]) <= 100


@pytest.mark.test_all
def test_star_and_dir_show_every_name() -> None:
    said = in_a_process_of_its_own(
        "import tasks_app; seen = dir(tasks_app); from tasks_app import *;"
        " print(all(n in seen and n in globals() for n in tasks_app.__all__))"
    )

    assert said == "True\n"


def test_a_misspelt_name_is_refused_as_everywhere() -> None:
    with pytest.raises(ImportError, match="cannot import name 'create_tusk'"):
        exec("from tasks_app import create_tusk", {})


@pytest.mark.test_all
def test_what_helps_your_alembic_brings_neither_celery_nor_alembic() -> None:
    code = "import sys; from tasks_app.alembic import include_name; print(*sys.modules)"
    names = in_a_process_of_its_own(code).split()

    assert {name.partition(".")[0] for name in names} & set(SLOW.split()) == set()
