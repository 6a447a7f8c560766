"""The migration that brings held tasks: what roles may do, and how it goes back."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import pytest
from alembic import command
from sqlalchemy import Connection, text

from tasks_app.domain.operations.selection import Action
from tasks_app.pool.schema import _config, migrate
from tasks_app.pool.tasks.amend_waiting import amend
from tests.factory import pending_task, row_of

pytestmark = pytest.mark.test_all

LATER = datetime(2031, 1, 1, tzinfo=UTC)


def before_it(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.downgrade(config, "0038")


@pytest.mark.parametrize("may", [True, False])
def test_who_may_change_dates_column_by_column_may_change_that_of_a_held_task(
    database: Connection, may: bool
) -> None:
    role = f"held_{uuid4().hex[:8]}"
    migrate(database)
    before_it(database)
    database.exec_driver_sql(f"CREATE ROLE {role}")  # goes with the transaction
    if may:
        database.exec_driver_sql(
            f"GRANT SELECT (due_at), UPDATE (due_at) ON task_pending TO {role}"
        )

    migrate(database)

    asked = text("SELECT has_column_privilege(:role, 'task_pending', 'held_due_at', :what)")
    allowed = [
        database.execute(asked, {"role": role, "what": what}).scalar_one()
        for what in ("SELECT", "UPDATE")
    ]
    assert allowed == [may, may]


def test_down_gives_what_is_held_its_date_back(database: Connection) -> None:
    migrate(database)
    task_id = pending_task(database, run_at=LATER)
    amend(database, Action.HOLD, [task_id])

    before_it(database)

    row = row_of(database, task_id)
    assert (row.due_at, row.scan_at) == (LATER, LATER)
