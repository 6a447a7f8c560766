"""Private files, logs, and other small parts."""

from __future__ import annotations

import errno
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from tasks_app import sql_handler
from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.tasks.error_text import first_line
from tasks_app.pool.db_scheduler import functions
from tasks_app.runtime.schedules.db_scheduler import sql_tasks_of
from tasks_app.runtime.tracing.run_logs import JsonLines, name_worker
from tasks_app.runtime.transfer import written_privately
from tests.runtime.bench import NOW_DUE, Bench


def test_of_two_writers_one_is_refused_and_the_other_ones_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"

    with written_privately(path) as first:
        first.write("one\n")
        first.flush()
        with (
            pytest.raises(InvalidSelectionError, match="Another process is writing"),
            written_privately(path) as second,
        ):
            second.write("two\n")
        assert not path.exists()
        first.write("more\n")

    assert path.read_text() == "one\nmore\n"
    assert [file.name for file in tmp_path.iterdir()] == ["tasks.jsonl"]


def test_what_a_killed_writer_left_is_written_anew_with_the_same_mode(tmp_path: Path) -> None:
    path, left = tmp_path / "tasks.jsonl", tmp_path / "tasks.jsonl.part"
    left.write_text("half of a line, and more than what follows")
    left.chmod(0o644)
    with written_privately(path) as file:
        file.write("whole\n")
    assert path.read_text() == "whole\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    path, other = tmp_path / "tasks.jsonl", tmp_path / "other"
    other.write_text("somebody's")
    path.with_name("tasks.jsonl.part").symlink_to(other)
    with (
        pytest.raises(InvalidSelectionError, match="cannot be written"),
        written_privately(path) as file,
    ):
        file.write("ours")
    assert other.read_text() == "somebody's"


def test_a_full_disk_is_said_in_words(tmp_path: Path) -> None:
    def fill() -> None:
        with written_privately(tmp_path / "tasks.jsonl") as file:
            file.write("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InvalidSelectionError, match="cannot be written: No space left on device"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_somebody_made_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"

    def write() -> None:
        with written_privately(path) as file:
            file.write("ours")
            path.write_text("somebody's")

    with pytest.raises(InvalidSelectionError, match="exists already"):
        write()
    assert path.read_text() == "somebody's"
    assert [file.name for file in tmp_path.iterdir()] == ["tasks.jsonl"]


def line(message: str, *arguments: object, **fields: object) -> dict[str, object]:
    record = logging.LogRecord("a.b", logging.WARNING, __file__, 1, message, arguments, None)
    record.created = 0.25
    vars(record).update(fields)
    written = JsonLines().format(record)
    assert "\n" not in written
    return json.loads(written)


def test_a_line_says_when_where_and_what() -> None:
    said = line("two\nlines \x1b %s", "\udcff")
    assert said.pop("worker")
    assert said == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "WARNING",
        "logger": "a.b",
        "message": "two\nlines \x1b \udcff",
    }


def test_of_the_fields_only_those_of_a_run_are_written() -> None:
    run = {"task_id": 7, "attempt": 2, "queue": "mail", "biz_key": "order:1"}
    said = line("x", task_name="t", payload={"card": "4111-1111"}, data="4111-1111", **run)
    assert {key: said[key] for key in ("name", *run)} == {"name": "t", **run}
    assert "4111-1111" not in str(said)
    assert "biz_key" not in line("x", biz_key=None)


def test_an_exception_has_its_traceback() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        said = line("x", exc_info=sys.exc_info())
    assert str(said["exception"]).endswith("ValueError: boom")


def test_a_child_is_called_as_in_the_database() -> None:
    name_worker("host:1:abc")
    assert line("x")["worker"] == "host:1:abc"


INSERT = text("INSERT INTO task_pending (name, priority, payload) VALUES ('t', 11, :payload)")


def test_a_refused_row_is_named_by_its_constraint_alone(bench: Bench) -> None:
    database = bench.child(start=False).database
    with pytest.raises(IntegrityError) as refusal, database.begin() as connection:
        connection.execute(INSERT, {"payload": '{"card": "canary"}'})
    assert "numbers_are_sane" in first_line(refusal.value)
    assert "canary" in str(refusal.value.orig)
    assert "canary" not in first_line(refusal.value)


def test_errors_of_our_own_statements_hide_their_parameters(bench: Bench) -> None:
    database = bench.child(start=False).database
    with pytest.raises(IntegrityError) as refusal, database.begin() as connection:
        connection.execute(INSERT, {"payload": '{"card": "canary"}'})
    assert "canary" not in str(refusal.value).split("[SQL:")[1]


WATCHED = """
import gc
collected = []
gc.callbacks.append(lambda phase, about: collected.append(about["generation"]))
{start}
assert gc.isenabled()
print(collected.count(2))
"""
APP = "import tasks_app.celery"
WORK = "from tasks_app.cli.group import group; group.get_command(None, 'work')"


@pytest.mark.test_all
@pytest.mark.parametrize("start", [APP, WORK], ids=["celery", "work"])
def test_a_start_walks_through_all_objects_not_once(start: str) -> None:
    asked = [sys.executable, "-c", WATCHED.format(start=start)]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert int(said) == 0


EFFECTS = "SELECT array_agg(n ORDER BY n) FROM sql_effect"
WAITING = "SELECT array_agg(id ORDER BY id) FROM task_pending"


@pytest.fixture
def shop(bench: Bench) -> Iterator[Bench]:
    """Two tasks in SQL that a worker knows, and the database, too."""
    sql_handler("add", "INSERT INTO sql_effect VALUES (:n)", registry=bench.registry)
    sql_handler(
        "wait", "SELECT 1 / count(*) FROM sql_ready", registry=bench.registry, retry="1s,1s,1s"
    )
    with bench.engine.begin() as connection:
        connection.execute(text("CREATE TABLE sql_effect (n integer); CREATE TABLE sql_ready ()"))
        tasks = sql_tasks_of(bench.registry, bench.settings(), leave=False)
        functions.create(connection, bench.settings(), tasks)
    yield bench
    with bench.engine.begin() as connection:
        functions.drop(connection)
        connection.execute(text("DROP TABLE sql_effect, sql_ready"))


def by_the_database(shop: Bench) -> None:
    with shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CALL task_run_sql()"))


def by_messages(shop: Bench) -> None:
    """As a Celery worker's child does it."""
    shop.execute(shop.sql(WAITING))


def by_work(shop: Bench) -> None:
    shop.drain()


@pytest.mark.test_all
def test_each_goes_on_where_the_other_stopped(shop: Bench) -> None:
    patient = shop.create("wait")
    ways = (by_the_database, by_messages, by_the_database, by_work)
    for n, way in enumerate(ways):
        shop.create("add", {"n": n})
        if way is by_work:
            shop.sql("INSERT INTO sql_ready DEFAULT VALUES")
        shop.sql(NOW_DUE)
        way(shop)

        assert shop.sql(EFFECTS) == list(range(n + 1)), way
        assert shop.task(patient).attempt == n + 1

    task = shop.task(patient)
    assert (str(task.state), task.failures) == ("SUCCEEDED", 3)
    assert [(each.attempt, each.event) for each in shop.attempts(patient)] == [
        (n, "retry") for n in (1, 2, 3)
    ]
    assert shop.sql(WAITING) is None
