"""The tiers, the names of classes, and the public names."""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

import tasks_app
from tests import tiers
from tests.cases import in_one_test


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: time.sleep(0.001), "sleeps"),
        (lambda: asyncio.run(asyncio.sleep(0.001)), "sleeps"),
        (lambda: subprocess.run([sys.executable, "-V"], check=False), "starts a process"),
    ],
)
def test_what_is_not_for_the_first_tier_fails_although_the_product_hides_it(
    request: pytest.FixtureRequest, act: Any, said: str
) -> None:
    refused = pytest.raises(pytest.fail.Exception, match=f"This test {said}.*test_all")
    with refused, tiers.guarding(request.node), suppress(AssertionError):
        act()


@pytest.mark.test_all
def test_what_has_the_mark_may_do_both(request: pytest.FixtureRequest) -> None:
    with tiers.guarding(request.node):
        time.sleep(0.001)
        subprocess.run([sys.executable, "-V"], check=True, capture_output=True)


def test_a_fixture_that_starts_processes_gives_the_mark() -> None:
    @tiers.starts_processes
    def server() -> None: ...

    def made(fixture: Any) -> SimpleNamespace:
        marks: list[str] = []
        definitions = {"it": [SimpleNamespace(func=fixture)]}
        return SimpleNamespace(
            marks=marks,
            add_marker=marks.append,
            get_closest_marker=lambda name: name if name in marks else None,
            _fixtureinfo=SimpleNamespace(name2fixturedefs=definitions),
        )

    items: list[Any] = [made(server), made(lambda: None)]
    tiers.mark(items)

    assert [item.marks for item in items] == [["test_all"], []]


def test_the_first_of_a_table_stay_in_the_first_tier() -> None:
    cases = tiers.few(1, ["a", ("b", 2), "c"])
    assert cases[0] == "a"
    assert [case.values for case in cases[1:]] == [("b", 2), ("c",)]
    assert {mark.name for case in cases[1:] for mark in case.marks} == {"test_all"}


def test_in_a_table_the_case_that_fails_is_named() -> None:
    @in_one_test("number", [1, 2, 3])
    def is_no_two(number: int) -> None:
        assert number != 2

    with pytest.raises(AssertionError) as failed:
        is_no_two()
    assert failed.value.__notes__[-1] == "case: {'number': 2}"


class TestWarmConnections:
    @pytest.fixture
    def url(self, database_url: str) -> str:
        return make_url(database_url).set(drivername="postgresql").render_as_string(False)

    def test_a_closed_one_is_given_to_the_next_as_new(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as first:
            before = first.info.backend_pid
            for leak in (
                "SET lock_timeout = 77",
                "CREATE TEMP TABLE left_behind ()",
                "PREPARE left_behind AS SELECT 1",
                "SELECT pg_advisory_lock(7)",
                "LISTEN left_behind",
            ):
                first.execute(leak)
        assert first.closed

        with psycopg.connect(url) as second:
            assert second.info.backend_pid == before
            found = second.execute(
                "SELECT current_setting('lock_timeout'), to_regclass('pg_temp.left_behind'),"
                " (SELECT count(*) FROM pg_prepared_statements WHERE name = 'left_behind'),"
                " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
                "  AND pid = pg_backend_pid()),"
                " (SELECT count(*) FROM pg_listening_channels())"
            ).fetchone()
        assert found == ("0", None, 0, 0, 0)

    def test_one_in_a_transaction_is_not(self, url: str) -> None:
        first = psycopg.connect(url)
        before = first.execute("SELECT pg_backend_pid()").fetchone()
        first.close()
        with psycopg.connect(url) as second:
            assert second.execute("SELECT pg_backend_pid()").fetchone() != before

    def test_nor_is_one_that_the_server_has_ended(self, url: str) -> None:
        with psycopg.connect(url) as other, psycopg.connect(url) as first:
            before = first.info.backend_pid
            first.close()
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [before])
            with psycopg.connect(url) as second:
                assert second.info.backend_pid != before


PRODUCT = sorted((Path(__file__).parent.parent / "tasks_app").rglob("*.py"))
SHARED = {"Fixed", "Notice"}
"""Public twice: a retry policy, and a planner of ranges."""
CLASS = re.compile(r"^class ([^_]\w*)", re.MULTILINE)


def test_a_name_is_one_class() -> None:
    names = Counter(name for file in PRODUCT for name in CLASS.findall(file.read_text()))
    assert {name for name, number in names.items() if number > 1} == SHARED


STUB = ast.parse(Path(tasks_app.__file__).with_suffix(".pyi").read_text())


def in_a_process_of_its_own(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_every_name_is_fetched_from_the_room_that_type_checkers_see() -> None:
    written = {
        (alias.name, node.module)
        for node in STUB.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name  # or it would not be exported
    }

    assert set(tasks_app._MODULES.items()) == written
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
