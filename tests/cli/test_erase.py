"""``erase`` prints a receipt, and says what it left."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import Engine, text

from tasks_app import create_task
from tasks_app.domain.errors import SchemaError
from tasks_app.pool.operations.erase import check_may_erase
from tasks_app.pool.operations.grants import RoleKind, grants_sql
from tests.cli.shell import Shell


@pytest.fixture
def task_id(engine: Engine) -> int:
    with engine.begin() as connection:
        return create_task(connection, "t", {"card": "canary"}, biz_key="customer:7")


def test_it_prints_a_receipt(shell: Shell, task_id: int) -> None:
    assert (
        "0 tasks would be erased" in shell("erase", "--biz-key", "customer:7", "--dry-run").stdout
    )
    left = shell("erase", "--biz-key", "customer:7")
    assert left.returncode == 1
    assert "1 task left, still to run: --cancel" in left.stderr

    done = shell("erase", "--biz-key", "customer:7", "--cancel", "--why", "asked for", "--json")

    receipt = json.loads(done.stdout)
    assert done.returncode == 0
    assert (receipt["tasks"], receipt["cancelled"], receipt["complete"]) == (1, 1, True)
    assert receipt["rows"]["task_completed"] == 1
    assert receipt["why"] == "asked for"
    assert "canary" not in done.stdout + shell("show", str(task_id)).stdout
    assert "1 task erased" in shell("erase", "--biz-key", "customer:7").stdout


def test_it_never_means_everything(shell: Shell) -> None:
    refused = shell("erase")
    assert refused.returncode == 2
    assert "--biz-key" in refused.stderr


def test_only_the_owner_may(engine: Engine, task_id: int) -> None:
    role = "eraser_of_test"
    with engine.connect() as connection:
        connection.execute(text(f"CREATE ROLE {role}"))
        connection.execute(text(grants_sql(RoleKind.ADMIN, role)))
        connection.execute(text(f"SET LOCAL ROLE {role}"))
        with pytest.raises(SchemaError, match="Run this as the owner of the tables"):
            check_may_erase(connection)
        connection.rollback()
        check_may_erase(connection)
    assert task_id
