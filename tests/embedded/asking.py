"""Short ways to talk to the servers, and to wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import redis

from tests import clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tasks_app.embedded.folder import StackState
    from tasks_app.embedded.stack import Stack

PATIENCE_S = 30


def sql(url: str, statement: str) -> Any:
    """Run one statement; return the first value of its first row, if it has rows."""
    with psycopg.connect(url.replace("+psycopg", ""), connect_timeout=5) as connection:
        cursor = connection.execute(statement)
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def broker(url: str, *command: str) -> Any:
    client = redis.Redis.from_url(url, decode_responses=True)
    try:
        return client.execute_command(*command)
    finally:
        client.close()


def until(holds: Callable[[], Any]) -> Any:
    return clock.until(holds, PATIENCE_S)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pids(state: StackState | Stack) -> list[int]:
    return [started.pid for started in state.started]


def spoil(data: Path) -> None:
    """Let Valkey find what it cannot read."""
    manifest = data / "appendonlydir" / "appendonly.aof.manifest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("nonsense")
    for path in (manifest.parent, manifest):
        path.chmod(0o777)
