"""tasks_app as a producer sees it."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout

from sqlalchemy import create_engine

from benchmarks.peers.verbs import DATABASE, answer
from tasks_app import NewTask, create_tasks

AT_ONCE = 10_000
URL = DATABASE.replace("postgresql:", "postgresql+psycopg:")


def install() -> None:
    """Migrate."""
    os.environ["TASKS_APP_DATABASE_URL"] = URL
    from tasks_app.cli.group import group

    with redirect_stdout(sys.stderr):
        group(["migrate"], standalone_mode=False)


def enqueue(n: int, handler: str) -> None:
    """Create tasks, as fast as it goes."""
    engine = create_engine(URL)
    for start in range(0, n, AT_ONCE):
        new = [NewTask(handler, {"i": i}) for i in range(start, min(n, start + AT_ONCE))]
        with engine.begin() as connection:  # a Connection sends no hints: the scan must find them
            create_tasks(connection, new)


if __name__ == "__main__":
    answer(install, enqueue)
