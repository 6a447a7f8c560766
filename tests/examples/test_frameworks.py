"""The examples of frameworks, started here: order and task commit together, or not at all."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from sqlalchemy import Engine, text

from tasks_app import Settings
from tasks_app.testing import drain


class Answer(NamedTuple):
    status: int
    body: Any


Ask = Callable[..., Answer]
Framework = Callable[[], Ask]


@asynccontextmanager
async def fastapi_lives(app: Any) -> Any:
    async with app.router.lifespan_context(app):
        yield


@asynccontextmanager
async def litestar_lives(app: Any) -> Any:
    async with app.lifespan():
        yield


def asgi(app: Any, lives: Callable[[Any], Any]) -> Ask:
    async def ask(method: str, path: str, **params: Any) -> Answer:
        # as an ASGI server on this machine, for the dashboard
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
        async with (
            lives(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            said = await client.request(method, path, params=params)
        json = said.headers.get("content-type", "").startswith("application/json")
        return Answer(said.status_code, said.json() if json else said.text)

    return lambda *args, **params: asyncio.run(ask(*args, **params))


def fastapi() -> Ask:
    return asgi(import_module("fastapi_app.app").app, fastapi_lives)


def litestar() -> Ask:
    pytest.importorskip("litestar")
    return asgi(import_module("litestar_app.app").app, litestar_lives)


def flask() -> Ask:
    app = import_module("flask_app.app").create_app()
    client, db = app.test_client(), import_module("flask_app.models").db

    def ask(method: str, path: str, **params: Any) -> Answer:
        said = client.open(path, method=method, data=params)
        with app.app_context():
            db.engine.dispose()
        return Answer(said.status_code, said.get_json(silent=True) or said.text)

    return ask


@pytest.fixture
def settings(
    engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Settings]:
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", database_url)
    yield Settings()
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS orders"))


def count(engine: Engine, table: str) -> Any:
    with engine.connect() as connection:
        return connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()


@pytest.mark.test_all
@pytest.mark.parametrize("framework", [fastapi, flask, litestar])
def test_an_order_and_its_task_commit_together(
    engine: Engine, settings: Settings, framework: Framework
) -> None:
    ask = framework()
    placed = ask("POST", "/orders", item="book")
    assert placed.status == 201
    order, task = f"/orders/{placed.body['order_id']}", f"/order-tasks/{placed.body['task_id']}"
    assert ask("GET", order).body == {"item": "book", "confirmed": False}
    assert ask("GET", task).body == {"state": "PENDING", "error": None}
    drain(settings)
    assert ask("GET", order).body == {"item": "book", "confirmed": True}
    assert ask("GET", task).body == {"state": "SUCCEEDED", "error": None}


@pytest.mark.parametrize("framework", [fastapi, flask, litestar])
def test_a_refused_order_leaves_nothing(
    engine: Engine, settings: Settings, framework: Framework
) -> None:
    ask = framework()
    assert ask("POST", "/orders", item="unicorn").status == 409
    assert (count(engine, "orders"), count(engine, "task_pending")) == (0, 0)
    assert ask("GET", "/orders/1").status == 404


@pytest.mark.parametrize("framework", [fastapi, litestar])
def test_the_dashboard_is_mounted(settings: Settings, framework: Framework) -> None:
    ask = framework()
    for path in ("/tasks/", "/tasks/tasks"):
        page = ask("GET", path)
        assert page.status == 200
        assert 'href="/tasks/queues"' in page.body
    assert ask("GET", "/tasks/static/app.css").status == 200


@pytest.mark.test_all
def test_a_script_creates_and_runs_tasks(
    engine: Engine, settings: Settings, examples: Path, tmp_path: Path
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("Ann\nBob\n")

    def script(*arguments: str) -> str:
        command = [sys.executable, str(examples / "script.py"), *arguments]
        done = subprocess.run(
            command, env=os.environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert script(str(names)) == "2 of 2 names are new.\n"
    assert script(str(names)) == "0 of 2 names are new.\n"
    script()

    with engine.connect() as connection:
        said = connection.execute(text("SELECT result ->> 'said' FROM task_completed ORDER BY id"))
        assert said.scalars().all() == ["Hello, Ann!", "Hello, Bob!"]
