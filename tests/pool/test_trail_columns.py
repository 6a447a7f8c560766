"""The migration that brings the trail: what roles may do, and how it goes back."""

from __future__ import annotations

from uuid import uuid4

import pytest
from alembic import command
from sqlalchemy import Connection, text

from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.pool.schema import _config, migrate
from tests.factory import claimed_task


def before_it(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.downgrade(config, "0039")


@pytest.mark.parametrize("may", [True, False])
def test_who_may_amend_dates_by_a_unique_key_may_say_when(database: Connection, may: bool) -> None:
    role = f"trail_{uuid4().hex[:8]}"
    migrate(database)
    before_it(database)
    database.exec_driver_sql(f"CREATE ROLE {role}")  # goes with the transaction
    if may:
        database.exec_driver_sql(f"GRANT UPDATE (due_at) ON task_pending TO {role}")

    migrate(database)

    asked = text("SELECT has_column_privilege(:role, 'task_pending', 'changed_at', 'UPDATE')")
    assert database.execute(asked, {"role": role}).scalar_one() is may


@pytest.mark.test_all
def test_down_keeps_the_lines_that_older_code_can_read(
    database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOG, "level", Logged.ALL)
    migrate(database)
    claimed_task(database)

    before_it(database)

    events = database.exec_driver_sql("SELECT event FROM task_transition").scalars().all()
    assert events == ["claim"]
    migrate(database)
    assert database.exec_driver_sql("SELECT updated_at = started_at FROM task_all").scalar_one()
