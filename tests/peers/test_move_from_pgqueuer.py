"""The three ways of buying of the guide from PGQueuer, each on its own connection."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from tasks_app import Settings, acreate_task
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.testing import drain
from tests.docs.reading import blocks, text_of
from tests.peers import play
from tests.peers.environments import programs_of
from tests.peers.preludes import THEIRS

BEFORE, HANDLER, AFTER, BARE = blocks(text_of("docs/from/pgqueuer.md"), "python")


@pytest.fixture
def orders(engine: Engine) -> Iterator[str]:
    """The shop's table; the URL of the database for drivers."""
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS guide_order"))
        connection.execute(text("CREATE TABLE guide_order (id bigint PRIMARY KEY)"))
    yield engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE guide_order"))


def test_both_new_ways_create_tasks_that_run(
    orders: str, engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HANDLERS, "specs", {})
    names: dict[str, Any] = {
        "__name__": "shop",
        "acreate_task": acreate_task,
        "json": json,
        "text": text,
    }
    exec(compile(HANDLER + AFTER, "guide", "exec"), names)
    bare = dict(names)
    exec(compile(BARE, "guide", "exec"), bare)

    async def both() -> None:
        async_url = engine.url.set(drivername="postgresql+asyncpg")
        async_engine = create_async_engine(async_url)
        async with AsyncSession(async_engine) as session:
            await names["buy"](session, 1)
        await async_engine.dispose()
        connection = await asyncpg.connect(orders)
        await bare["buy"](connection, 2)
        await connection.close()

    asyncio.run(both())
    drained = drain(Settings(database_url=database_url)).assert_succeeded()

    assert [run.result for run in drained] == [{"sent": 1}, {"sent": 2}]


@pytest.mark.test_all
@pytest.mark.timeout(300, method="thread")
def test_the_way_before_is_theirs(orders: str) -> None:
    buying = f"import json\n{BEFORE}\nawait buy(connection, queries, 1)"
    counted = "assert await connection.fetchval('SELECT count(*) FROM pgqueuer') == 2"
    path = "await connection.execute('SET search_path = guide_peer, public')"
    done = subprocess.run(
        [programs_of("pgqueuer") / "python", Path(play.__file__)],
        input=json.dumps(
            {"prelude": THEIRS["pgqueuer"] + path, "snippets": [f"{buying}\n{counted}"]}
        ),
        env={**os.environ, "PGDSN": orders},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {}
