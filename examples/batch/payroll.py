"""A payroll file becomes rows, and each row a payslip task.

    export TASKS_APP_IMPORTS=batch.payroll PYTHONPATH=examples
    python examples/batch/payroll.py 200000 payroll.csv
    tasks-app batch start payroll '{"path": "payroll.csv", "month": "2026-11"}'
    tasks-app work --drain

The file is cut at borders of records, and its segments are read side by side. A line that cannot be
read is left out, with its reason: tasks-app batch partitions 1 --skipped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from sqlalchemy import create_engine, text

from tasks_app import (
    BatchJob,
    ChunkContext,
    File,
    NewTask,
    Query,
    Step,
    TaskContext,
    create_tasks,
    handler,
)
from tasks_app.batch.planners.even import Even
from tasks_app.batch.planners.flat_file import FlatFile

SCHEMA = """
CREATE TABLE IF NOT EXISTS payroll (
    month text NOT NULL, employee bigint NOT NULL, name text NOT NULL, gross numeric NOT NULL,
    PRIMARY KEY (month, employee));
CREATE TABLE IF NOT EXISTS payslip (
    month text NOT NULL, employee bigint NOT NULL, net numeric NOT NULL,
    PRIMARY KEY (month, employee))
"""
INSERT = text("""
    INSERT INTO payroll (month, employee, name, gross)
    SELECT :month, u.employee, u.name, u.gross
    FROM unnest(CAST(:employees AS bigint[]), CAST(:names AS text[]), CAST(:gross AS numeric[]))
        AS u(employee, name, gross)
""")


class Month(BaseModel):
    """Which payroll, and where it is."""

    month: str
    path: str


class Employee(BaseModel):
    """Whose payslip."""

    month: str
    employee: int


@handler("payslip.write", queue="default")
def write_payslip(ctx: TaskContext, payload: Employee) -> None:
    """Write one payslip, in a task of its own, which is retried and looked at alone."""
    ctx.connection.execute(
        text("""
            INSERT INTO payslip (month, employee, net)
            SELECT month, employee, round(gross * 0.62, 2) FROM payroll
            WHERE month = :month AND employee = :employee
        """),
        payload.model_dump(),
    )


def load(ctx: ChunkContext, rows: Sequence[Any]) -> None:
    """Insert the lines of a chunk; one that is no payroll line fails alone."""
    values = {
        "month": ctx.params.month,
        "employees": [int(row["employee"]) for row in rows],
        "names": [row["name"] for row in rows],
        "gross": [Decimal(row["gross"]) for row in rows],
    }
    ctx.connection.execute(INSERT, values)


def ask_for_payslips(ctx: ChunkContext, rows: Sequence[Any]) -> None:
    """Create a task for each employee, in one commit with the checkpoint: none twice, none lost."""
    month = ctx.params.month
    create_tasks(
        ctx.session,
        [
            NewTask(
                write_payslip,
                Employee(month=month, employee=row.employee),
                {"biz_key": f"employee:{row.employee}"},
            )
            for row in rows
        ],
    )


def of_month(params: Month) -> Query:
    """Return the rows of this payroll."""
    from sqlalchemy import column, select, table  # noqa: PLC0415  the query's own words

    rows = table("payroll", column("employee"), column("month"))
    return Query(select(rows.c.employee).where(rows.c.month == params.month), "employee")


payroll = BatchJob(
    "payroll",
    [
        Step(
            "load",
            lambda params: File(params.path),
            planner=FlatFile(8),
            chunk=load,
            commit_every="2000 rows or 1s",
            skip_limit=100,
        ),
        Step("payslips", of_month, planner=Even(4), chunk=ask_for_payslips),
    ],
    params=Month,
    identified_by=["month"],
)


def write_file(path: Path, lines: int) -> None:
    """Write a payroll file, with one damaged line in 50,000."""
    with path.open("w") as out:
        out.write("employee,name,gross\n")
        for number in range(1, lines + 1):
            gross = "??" if number % 50_000 == 0 else f"{2000 + number % 4000}.50"
            out.write(f'{number},"Employee, no. {number}",{gross}\n')


def make_tables(url: str) -> None:
    """Make the tables."""
    with create_engine(url).begin() as connection:
        for statement in SCHEMA.split(";"):
            connection.execute(text(statement))


if __name__ == "__main__":
    make_tables(os.environ["TASKS_APP_DATABASE_URL"])
    write_file(Path(sys.argv[2]), int(sys.argv[1]))
    print(f"{sys.argv[2]} is written. Start the job: see the head of this file.")
