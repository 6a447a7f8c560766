"""The three jobs of the examples, as their heads say: started in the shell, run by a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

pytestmark = [pytest.mark.test_all]
ROWS = int(os.environ.get("EXAMPLES_ROWS", "3000"))
"""1,000,000 orders and 200,000 lines are for who has the time."""


class Night:
    """Runs commands with the examples on the path."""

    def __init__(self, engine: Engine, url: str, examples: Path, folder: Path) -> None:
        self.engine = engine
        self._folder = folder
        self._environment = {
            **os.environ,
            "TASKS_APP_DATABASE_URL": url,
            "PYTHONPATH": str(examples),
        }

    def __call__(self, job: str, *arguments: str) -> str:
        ended = subprocess.run(
            [sys.executable, *arguments],
            env={**self._environment, "TASKS_APP_IMPORTS": f"batch.{job}"},
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        with self.engine.begin() as connection:
            result = connection.execute(text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []


@pytest.fixture
def night(engine: Engine, database_url: str, examples: Path, tmp_path: Path) -> Iterator[Night]:
    night = Night(engine, database_url, examples, tmp_path)
    yield night
    night.sql("DROP TABLE IF EXISTS orders, sales_of_day, payroll, payslip")
    night.sql("DROP TABLE IF EXISTS message, message_archive")


def test_statistics_of_a_day(night: Night, examples: Path) -> None:
    night("sales", str(examples / "batch" / "sales.py"), str(ROWS))
    night("sales", "-m", "tasks_app", "batch", "start", "sales", '{"day": "2026-11-21"}')

    night("sales", "-m", "tasks_app", "work", "--drain")

    counted = "SELECT city, count(*), sum(cents) FROM orders GROUP BY city ORDER BY city"
    assert night.sql("SELECT status FROM task_batch") == [("COMPLETED",)]
    assert night.sql("SELECT city, orders, cents FROM sales_of_day ORDER BY city") == night.sql(
        counted
    )


def test_a_payroll_becomes_payslips(night: Night, examples: Path, tmp_path: Path) -> None:
    params = '{"path": "payroll.csv", "month": "2026-11"}'
    night("payroll", str(examples / "batch" / "payroll.py"), str(ROWS), "payroll.csv")
    damaged = (tmp_path / "payroll.csv").read_text().replace("\n7,", "\nseven,")
    (tmp_path / "payroll.csv").write_text(damaged)
    night("payroll", "-m", "tasks_app", "batch", "start", "payroll", params)

    night("payroll", "-m", "tasks_app", "work", "--drain")

    assert night.sql("SELECT status FROM task_batch") == [("COMPLETED",)]
    bad = 1 + ROWS // 50_000
    assert night.sql("SELECT count(*) FROM payroll") == [(ROWS - bad,)]
    assert night.sql("SELECT count(*) FROM payslip") == [(ROWS - bad,)]
    assert night.sql("SELECT count(*), min(reason) FROM task_batch_skip")[0][0] == bad


def test_old_rows_go_to_the_archive(night: Night, examples: Path) -> None:
    sys.path.insert(0, str(examples))
    try:
        from batch.archive import SCHEMA  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(examples))
    for statement in SCHEMA.split(";"):
        night.sql(statement)
    night.sql(
        "INSERT INTO message SELECT i, date '2024-12-01' + CAST(i % 60 AS int), 'text', i % 10 = 0"
        f" FROM generate_series(1, {ROWS}) AS i"
    )
    before = night.sql("SELECT count(*) FROM message WHERE sent < '2025-01-01' AND NOT pinned")
    night("archive", "-m", "tasks_app", "batch", "start", "archive", '{"before": "2025-01-01"}')

    night("archive", "-m", "tasks_app", "work", "--drain")

    left = "SELECT count(*) FROM message WHERE sent < '2025-01-01' AND NOT pinned"
    assert night.sql(left) == [(0,)]
    assert night.sql("SELECT count(*) FROM message_archive") == before
    both = "SELECT count(*) FROM message JOIN message_archive USING (id)"
    assert night.sql(both) == [(0,)]
