"""Whoever asks often for a sub-status makes the indexes that the page gives, and they are used."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from tasks_app.pool.tasks import browse
from tests.docs.reading import text_of

RARE = "waiting for bank"
INDEXES = re.findall(
    r"CREATE INDEX task_\w+_sub_status ON [^;]*", text_of("docs/operations/tracing.md")
)
FILL = text("""
    INSERT INTO task_pending (name, queue, priority, payload, due_at, scan_at, sub_status)
    SELECT 't', 'default', 5, '{}', now(), now(), CASE WHEN n % 5000 = 1 THEN :rare ELSE 'paid' END
    FROM generate_series(1, 20000) AS n
""")


@pytest.fixture
def plan(connection: Connection) -> Any:
    """Ask as ``list --sub-status`` does, and return the plan of that."""

    def ask() -> str:
        sent: list[tuple[Any, Any]] = []

        def hear(_: Any, __: Any, statement: str, values: Any, *___: Any) -> None:
            sent.append((statement, values))

        event.listen(connection, "before_cursor_execute", hear)
        found = browse.find_tasks(connection, sub_status=RARE)
        event.remove(connection, "before_cursor_execute", hear)
        assert len(found) == 4
        ((statement, values),) = sent
        rows = connection.exec_driver_sql(f"EXPLAIN {statement}", values)
        return "\n".join(rows.scalars())

    return ask


@pytest.mark.test_all
def test_a_list_by_sub_status_reads_them(connection: Connection, plan: Any) -> None:
    connection.execute(FILL, {"rare": RARE})
    connection.exec_driver_sql("ANALYZE task_pending")
    before = plan()
    for statement in INDEXES:
        connection.exec_driver_sql(statement)
    connection.exec_driver_sql("ANALYZE task_pending")

    assert len(INDEXES) == 3
    assert "task_pending_sub_status" not in before
    assert "task_pending_sub_status" in plan(), plan()
