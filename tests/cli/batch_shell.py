"""A shell in a project with a batch job."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tests.cli.shell import Shell

JOBS = """
from pathlib import Path
from pydantic import BaseModel
from sqlalchemy import text
from tasks_app import BatchJob, Step, Table
from tasks_app.batch.planners.even import Even
from tasks_app.batch.planners.keys import KeyRanges

class Params(BaseModel):
    month: str

def chunk(ctx, rows):
    bad = Path("bad").exists()
    for row in rows:
        if bad and row.id == 15:
            raise ValueError("odd")

BatchJob("payroll", [
    Step("check", Table("person"), planner=Even(4), chunk=chunk, commit_every=5,
         on_abort="continue", max_attempts=1),
    Step("pay", Table("person"), planner=Even(2), chunk=chunk, skip_limit=1),
], params=Params)
BatchJob("sorted", [
    Step(name, Table("person"), planner=Even(2), chunk=chunk) for name in ("take", "post", "end")])
BatchJob("gapped", [
    Step("one", Table("person"), planner=KeyRanges([(None, 10), (12, None)]), chunk=chunk)])
"""


@pytest.fixture
def run(
    engine: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shell]:
    (tmp_path / "cli_jobs.py").write_text(JOBS)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS person"))
        connection.execute(text("CREATE TABLE person (id int PRIMARY KEY)"))
        connection.execute(text("INSERT INTO person SELECT generate_series(1, 40)"))
    yield Shell(
        monkeypatch,
        tmp_path,
        TASKS_APP_DATABASE_URL=database_url,
        TASKS_APP_IMPORTS="cli_jobs",
    )
    sys.modules.pop("cli_jobs", None)
    for name in ("payroll", "sorted", "gapped"):
        sys.modules["tasks_app.batch.job"].JOBS.pop(name, None)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE person"))
