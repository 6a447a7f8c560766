"""The blocks of the guide from tables of one's own, by their names on the page, and its steps."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from tasks_app import cancel_task, create_schedule, create_task
from tests.docs.reading import blocks, text_of
from tests.peers.own_tables import OLD

PAGE = text_of("docs/from/own-tables.md")
SQL = dict(
    re.findall(
        r"^-- ((?:common|whole|left|rename|redirect|move|failed)(?: \w+)?)\n(.*?)(?=^-- [a-z]|\Z)",
        "".join(blocks(PAGE, "postgresql")),
        re.DOTALL | re.MULTILINE,
    )
)
"""What runs, by its name on the page."""
EXAMPLES, SCHEDULES, BACK = blocks(PAGE, "python")
IMPORTS = "from sqlalchemy import text\nfrom tasks_app import TaskContext, handler\n\n"
KEYS = {"notice": "task_no"}
"""The column with the id, where it has another name."""
tables = pytest.mark.parametrize("name", OLD)


class Move:
    """The guide's steps, on one connection, which may be in a transaction of its own."""

    def __init__(self, name: str, session: Session) -> None:
        self.name, self.old, self.session = name, OLD[name], session
        self.key = KEYS.get(name, "id")
        self.view = "notice_now" if name == "notice" else f"{self.old.table}_now"

    def sql(self, statements: str, *values: Any) -> Any:
        """Send them as psql would; return the first column of the first row, if there is one."""
        raw: Any = self.session.connection().connection.driver_connection
        cursor = raw.execute(statements, values or None)
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]

    def run(self, script: str) -> Any:
        return self.sql(SQL[script if script == "common" else f"{script} {self.name}"])

    def named(self, script: str) -> str:
        """A script that the page shows for one table."""
        found = SQL[script].replace("async_task_now", self.view)
        found = re.sub(r"\bid\b(?!')", self.key, found)
        for old, new in (("'async_task'", f"'{self.name}'"), ("async_task", self.old.table)):
            found = found.replace(old, new)
        return found

    def rows(self, query: str) -> list[Any]:
        return [tuple(row) for row in self.session.execute(text(query))]

    def seen(self, columns: str, view: str = "") -> list[Any]:
        return self.rows(f"SELECT {columns} FROM {view or self.view} ORDER BY {self.key}")


def functions(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {
        "Session": Session, "text": text, "create_schedule": create_schedule,
        "create_task": create_task, "cancel_task": cancel_task,
    }  # fmt: skip
    exec(compile(code, "guide", "exec"), names)
    return names
