"""How ``work`` refuses to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, make_url

from tasks_app.broker.checks import RefusedStart, check_database
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.config.unreachable import PERMISSION_ADVICE
from tasks_app.pool.operations.grants import RoleKind, grants_sql
from tests.cli.shell import Shell
from tests.servers import named

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

READS = (
    "The database role {0} may not run tasks: it lacks UPDATE on task_pending and 6 more. The "
    "owner of the tables gives it what it needs: tasks-app grants worker --role {0} --apply"
)
HANDLERS = """
from tasks_app import handler

@handler("runs")
def runs(ctx):
    pass
"""


@pytest.fixture
def role(engine: Engine) -> Iterator[str]:
    """A role without rights."""
    role = named("creates")
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN PASSWORD 'its'")
    yield role
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {role}")
        connection.exec_driver_sql(f"DROP ROLE {role}")


@pytest.fixture
def shell(role: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell that works as that role."""
    url = make_url(database_url).set(username=role, password="its")
    (tmp_path / "role_handlers.py").write_text(HANDLERS)
    return Shell(
        monkeypatch,
        tmp_path,
        TASKS_APP_DATABASE_URL=url.render_as_string(hide_password=False),
        TASKS_APP_IMPORTS="role_handlers",
    )


def test_a_role_that_may_only_create_tasks_is_refused_once(
    engine: Engine, role: str, shell: Shell
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(grants_sql(RoleKind.PRODUCER, role))

    done = shell.process("work", "-c", "2")

    assert (done.returncode, done.stderr.splitlines()) == (1, [PERMISSION_ADVICE])


@pytest.mark.parametrize("arguments", [("work",), ("work", "--drain")])
def test_a_role_that_may_only_read_is_refused_once(
    engine: Engine, role: str, shell: Shell, arguments: tuple[str, ...]
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(grants_sql(RoleKind.READER, role))

    done = shell.process(*arguments)

    assert (done.returncode, done.stderr.splitlines()) == (1, [READS.format(role)])


def test_so_does_the_worker_of_celery(
    engine: Engine, role: str, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(grants_sql(RoleKind.READER, role))

    with pytest.raises(RefusedStart) as refused:
        check_database(load_settings())

    assert (refused.value.code, str(refused.value)) == (1, READS.format(role))


def test_a_role_with_the_grants_of_workers_may_run_tasks(
    engine: Engine, role: str, shell: Shell
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(grants_sql(RoleKind.WORKER, role))

    assert shell.process("work", "--drain").returncode == 0
