"""Short ways to talk to the servers, and to wait for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest
import redis

if TYPE_CHECKING:
    from collections.abc import Callable

    from tasks_app.embedded import Stack, State

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
    """Wait for a condition and return what it returned."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if value := holds():
            return value
        time.sleep(0.02)
    pytest.fail(f"waited {PATIENCE_S} s in vain")


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pids(state: State | Stack) -> list[int]:
    return [started.pid for started in state.started]
