"""The guide to imports: a file with wrong lines, a crash, a second upload."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from tasks_app import Settings, abandon_job, get_job
from tasks_app.testing import Drained, crash_next, drain, travel
from tests.how_to.conftest import Load

pytestmark = pytest.mark.test_all

TWICE = (
    """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN RAISE 'a line is written twice'; END $$""",
    "CREATE TRIGGER once BEFORE UPDATE ON price FOR EACH ROW EXECUTE FUNCTION refuse()",
)
RIGHT = {f"a{number}": (number + 1) * 100 + 50 for number in range(500)}
HERE = "This file is here already."


class Shop:
    """What it has imported, and how."""

    def __init__(self, imports: Any, engine: Engine, settings: Settings) -> None:
        self.imports, self.engine, self.settings = imports, engine, settings

    def upload(self, path: Path) -> str:
        with Session(self.engine) as session, session.begin():
            return str(self.imports.uploaded(session, path, 7))

    def drained(self) -> Drained:
        return drain(self.settings)

    @property
    def prices(self) -> dict[str, int]:
        with self.engine.connect() as connection:
            rows = connection.execute(text("SELECT sku, cents FROM price"))
            return {row.sku: row.cents for row in rows}


@pytest.fixture(scope="module")
def imports(load: Load) -> Any:
    return load("file-import/imports.py")


@pytest.fixture
def shop(imports: Any, engine: Engine, database_url: str) -> Iterator[Shop]:
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE price (sku text PRIMARY KEY, cents int CHECK (cents > 0))")
        )
    yield Shop(imports, engine, Settings(database_url=database_url))
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE price"))
        connection.execute(text("DROP FUNCTION IF EXISTS refuse"))


def a_file(folder: Path, *wrong: str) -> Path:
    path = folder / "prices.csv"
    lines = [f"a{number},{number + 1}.50" for number in range(500)]
    path.write_text("\n".join(["sku,price", *lines, *wrong]) + "\n")
    return path


def test_wrong_lines_are_left_out_and_counted(shop: Shop, tmp_path: Path) -> None:
    assert shop.upload(a_file(tmp_path, "b,??", "c,-1", "d", "e,7,8")).startswith("Import ")
    drained = shop.drained().assert_succeeded()
    assert shop.prices == RIGHT
    (told,) = drained.of("import.tell").succeeded
    with shop.engine.connect() as connection:
        of = text("SELECT payload FROM task_all WHERE id = :id")
        payload = connection.scalar(of, {"id": told.task_id})
    assert payload == {"user": 7, "written": 500, "skipped": 4}


def test_a_crash_costs_no_line_and_writes_none_twice(shop: Shop, tmp_path: Path) -> None:
    with shop.engine.begin() as connection:
        for statement in TWICE:
            connection.execute(text(statement))
    shop.upload(a_file(tmp_path))
    crash_next("import.prices:load")
    drained = shop.drained().assert_succeeded()
    assert any(run.attempt > 1 for run in drained.of("import.prices:load").runs)
    assert shop.prices == RIGHT


def test_the_same_file_is_imported_once(shop: Shop, tmp_path: Path) -> None:
    path = a_file(tmp_path)
    shop.upload(path)
    assert shop.upload(path) == HERE
    shop.drained().assert_succeeded()
    assert shop.upload(path.rename(tmp_path / "again.csv")) == HERE


def test_too_many_wrong_lines_fail_until_somebody_gives_up(shop: Shop, tmp_path: Path) -> None:
    path = a_file(tmp_path, *["b,??"] * 101)
    begun = shop.upload(path)
    for _ in range(4):
        shop.drained()
        with shop.engine.begin() as connection:
            travel("1h", connection)

    with Session(shop.engine) as session, session.begin():
        job = get_job(session, int(begun.split()[1]))
        assert job is not None
        assert job.batch.status == "FAILED"
        abandon_job(session, job.batch.id)
    assert shop.upload(path) not in (begun, HERE)
