"""What is installed: our package alone, and of others no more than who runs tasks needs."""

from __future__ import annotations

import re
import subprocess
import tomllib
from typing import Any

import pytest

from tasks_app.broker import internals
from tasks_app.domain.finding import Need, PrivateApi
from tasks_app.runtime.handler_db import driver_internals
from tests.docs.reading import PROJECT, text_of

pytestmark = pytest.mark.test_all

PYPROJECT: dict[str, Any] = tomllib.loads(text_of("pyproject.toml"))
BASE: list[str] = PYPROJECT["project"]["dependencies"]


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=;\s]", requirement, maxsplit=1)[0].lower()


def test_who_runs_tasks_installs_nothing_for_operators() -> None:
    everywhere = {name_of(line) for line in BASE if ";" not in line}

    assert not everywhere & {"alembic", "flower", "psutil", "rich"}


def needs() -> list[Need]:
    modules = (internals, driver_internals)
    found = [each for module in modules for each in vars(module).values()]
    return [need for each in found if isinstance(each, PrivateApi) for need in each.needs]


def test_what_is_not_promised_has_an_upper_bound() -> None:
    packages = {need.path.partition(":")[0].partition(".")[0] for need in needs()}
    bounded = {name_of(line) for line in BASE if "<" in line}

    assert packages - bounded == set()
    assert packages >= {"celery", "kombu", "psycopg", "redis", "sqlalchemy"}


def test_nothing_private_is_used_elsewhere() -> None:
    """Names of others that begin with an underscore stand where they are looked at before."""
    marked = [
        f"{path.relative_to(PROJECT)}: {line.strip()}"
        for path in sorted((PROJECT / "tasks_app").rglob("*.py"))
        for line in path.read_text().splitlines()
        if "SLF001" in line and "._mapping" not in line  # SQLAlchemy's public name
    ]

    allowed = re.compile(
        r"broker/(internals|publish/hints)\.py|pool/connection/execute\.py|handler_db/loop_conn"
        r"|_getframe|_kept_here|buffer\._begin"  # Python's, and our own
    )
    assert [line for line in marked if not allowed.search(line)] == []


def test_no_file_is_empty_by_accident() -> None:
    """As those were that a script had left at the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("this is no checkout")
    files = [PROJECT / name for name in listed.stdout.split("\0") if name]
    empty = [path for path in files if path.is_file() and not path.stat().st_size]

    assert [str(path) for path in empty if path.name not in ("__init__.py", "py.typed")] == []
