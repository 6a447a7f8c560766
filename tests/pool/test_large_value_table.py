"""The migration that brings large values: what roles may do, and how it goes back."""

from __future__ import annotations

from uuid import uuid4

import pytest
from alembic import command
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.large_values.reference import LargePayload
from tasks_app.pool.operations.grants import RoleKind, grants_sql
from tasks_app.pool.schema import _config, migrate
from tasks_app.pool.tasks import browse
from tasks_app.pool.tasks.create import create_one
from tasks_app.pool.tasks.large_values import read
from tests.factory import a_row

pytestmark = pytest.mark.test_all

WHATS = ("SELECT", "INSERT", "UPDATE", "DELETE")
MAY = text("SELECT has_table_privilege(:role, 'task_large_value', :what)")
GRANTED = {
    RoleKind.PRODUCER: ["INSERT"],
    RoleKind.AMENDER: ["INSERT"],
    RoleKind.LOCKER: [],
    RoleKind.WORKER: list(WHATS),
    RoleKind.READER: ["SELECT"],
    RoleKind.ADMIN: list(WHATS),
}


def before_it(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.downgrade(config, "0043")


def rights(connection: Connection, role: str) -> list[str]:
    return [what for what in WHATS if connection.scalar(MAY, {"role": role, "what": what})]


@pytest.mark.parametrize("kind", RoleKind)
def test_roles_that_were_granted_before_may_do_what_new_ones_may(
    database: Connection, kind: RoleKind
) -> None:
    role = f"large_{uuid4().hex[:8]}"
    database.exec_driver_sql(f"CREATE ROLE {role}")  # goes with the transaction
    migrate(database)
    database.exec_driver_sql(grants_sql(kind, role))
    assert rights(database, role) == GRANTED[kind]

    before_it(database)
    migrate(database)

    assert rights(database, role) == GRANTED[kind]


def test_down_is_refused_while_there_are_values_and_loses_none(database: Connection) -> None:
    migrate(database)
    value = LargePayload.of('{"text": "of a task that waits"}', encrypted=False)
    task_id = create_one(database, a_row()._replace(payload=value))

    with pytest.raises(DBAPIError, match="which would be lost"), database.begin_nested():
        before_it(database)

    task = browse.get(database, task_id)
    assert task is not None
    assert read(database, task_id, value.reference) == (value.content,)


def test_down_without_values_and_up_again_keeps_new_ones(database: Connection) -> None:
    migrate(database)
    create_one(database, a_row()._replace(payload=LargePayload.of("{}", encrypted=False)))
    database.exec_driver_sql("DELETE FROM task_large_value")

    before_it(database)
    migrate(database)

    value = LargePayload.of("{}", encrypted=False)
    task_id = create_one(database, a_row()._replace(payload=value))
    assert read(database, task_id, value.reference) == ("{}",)
