"""A shell in an empty folder, with handlers of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tasks_app.embedded.servers import Valkey
from tasks_app.pool.fragments.transition_log import LOG
from tests.cli.shell import (
    Shell,
    run,  # noqa: F401  a fixture
)
from tests.runtime.alerts.conftest import free_port  # noqa: F401  a fixture

HANDLERS = """
import gc, os, signal
from pydantic import BaseModel
from tasks_app import handler

class Order(BaseModel):
    order_id: int

@handler("cli.order")
def order(ctx, payload: Order):
    pass

@handler("cli.echo")
def echo(ctx, payload):
    return {**payload, "frozen": gc.get_freeze_count()}

@handler("cli.poison", retry="0s,0s")
def poison(ctx):
    os.kill(os.getpid(), signal.SIGKILL)
"""


ShellWith = Callable[..., Shell]


@pytest.fixture
def shell_with(
    engine: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ShellWith:
    """A shell with handlers of the test's own, without a broker."""

    def made(module: str, code: str, url: str = database_url) -> Shell:
        (tmp_path / f"{module}.py").write_text(code)
        urls = {"TASKS_APP_DATABASE_URL": url, "TASKS_APP_IMPORTS": module}
        return Shell(monkeypatch, tmp_path, **urls)

    return made


@pytest.fixture
def shell(
    engine: Engine,
    database_url: str,
    broker: Valkey,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Shell:
    """A shell whose environment names the test's database, broker and handlers."""
    monkeypatch.setattr(LOG, "level", LOG.level)  # a command sets it, and here it would stay
    (tmp_path / "cli_handlers.py").write_text(HANDLERS)
    return Shell(
        monkeypatch,
        tmp_path,
        TASKS_APP_DATABASE_URL=database_url,
        TASKS_APP_BROKER_URL=broker.url,
        TASKS_APP_IMPORTS="cli_handlers",
    )
