"""The three schemes on the same work, by turns, for docs/which-scheme.md.

Each task inserts one row by a statement. The clock is the database's: from the first claim to the
last outcome. Tasks are there before anybody begins. ``synchronous_commit`` is on.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from sqlalchemy import Engine, create_engine, text

from dev.benchmarks.scale import fresh_database
from tasks_app import NewTask, create_tasks, sql_handler
from tasks_app.embedded.stack import Stack, temporary
from tasks_app.pool.retention import add_partition, missing_partitions
from tasks_app.pool.schema import migrate

PATIENCE_S = 300
BIN = Path(sys.executable).parent
CELERY = (
    (f"{BIN}/celery", "-A", "tasks_app", "worker", "-c", "2", "--loglevel=warning"),
    (f"{BIN}/celery", "-A", "tasks_app", "beat", "--pidfile=", "--loglevel=warning"),
)
WORK = ((f"{BIN}/tasks-app", "work", "-c", "2"),)
CALLS = ((sys.executable, "-m", "dev.benchmarks.schemes", "--call"),)
INSTALL = (f"{BIN}/tasks-app", "db-scheduler", "install", "--functions-only", "--sql-tasks")
SCHEMES = {
    "database alone, one session": CALLS,
    "database alone, two sessions": CALLS * 2,
    "tasks-app work -c 2": WORK,
    "Celery prefork 2 and beat": CELERY,
}
_TOOK = text("""
    SELECT extract(epoch FROM max(finished_at) - min(started_at)), count(*) FROM task_completed
    WHERE state = 'SUCCEEDED' AND attempt = 1
""")

sql_handler("bench.insert", "INSERT INTO effect VALUES (:n::bigint)")


@contextmanager
def _running(commands: Sequence[Sequence[str]], environment: dict[str, str]) -> Iterator[None]:
    processes = [subprocess.Popen(each, env=environment) for each in commands]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def _rate(stack: Stack, number: int, commands: Sequence[Sequence[str]], n: int) -> float:
    """Return tasks a second of one run, each of them seen to have run once."""
    with fresh_database(stack.postgres.url, f"schemes_{number}") as database:
        url = database.engine.url.render_as_string(hide_password=False)
        variables = {
            "DATABASE_URL": url,
            "BROKER_URL": stack.valkey.url,
            "IMPORTS": "dev.benchmarks.schemes",
        }
        ours = {f"TASKS_APP_{key}": value for key, value in variables.items()}
        environment = {**os.environ, **ours, "PYTHONPATH": "."}
        with database.begin() as connection:
            migrate(connection)
            for day in missing_partitions(connection):
                add_partition(connection, day)
            connection.execute(text("CREATE TABLE effect (n bigint)"))
        subprocess.run(INSTALL, env=environment, check=True, stdout=subprocess.DEVNULL)
        with database.begin() as connection:
            create_tasks(connection, [NewTask("bench.insert", {"n": each}) for each in range(n)])
        with _running(commands, environment):
            _wait(database.engine)
        with database.begin() as connection:
            took_s, ended = connection.execute(_TOOK).one()
            effects = connection.execute(text("SELECT count(DISTINCT n) FROM effect")).scalar_one()
    if (ended, effects) != (n, n):
        raise SystemExit(f"{ended} of {n} tasks ended, with {effects} effects.")
    return n / float(took_s)


def _wait(engine: Engine) -> None:
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        with engine.begin() as connection:
            if not connection.execute(text("SELECT EXISTS (SELECT FROM task_pending)")).scalar():
                return
        time.sleep(0.1)
    raise SystemExit(f"Tasks are left after {PATIENCE_S} s.")


def _call() -> None:
    engine = create_engine(os.environ["TASKS_APP_DATABASE_URL"], isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("CALL task_run_sql(1000000)"))


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.schemes", description=__doc__)
    parser.add_argument("--n", type=int, default=10_000, help="tasks a run (10,000)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each scheme (3)")
    parser.add_argument("--call", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        return _call()
    rates: dict[str, list[float]] = {scheme: [] for scheme in SCHEMES}
    with temporary(persist=True) as stack:
        for number, (_, scheme) in enumerate(product(range(options.rounds), SCHEMES)):
            rates[scheme].append(_rate(stack, number, SCHEMES[scheme], options.n))
            print(f"{scheme:30} {rates[scheme][-1]:7,.0f} tasks/s", flush=True)
    for scheme, found in rates.items():
        spread = f"({min(found):,.0f} - {max(found):,.0f})"
        print(f"{scheme:30} {statistics.median(found):7,.0f} {spread}")
    return None


if __name__ == "__main__":
    main()
