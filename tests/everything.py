"""`make test-all`: both tiers, on each server that this machine has.

The whole suite runs on the embedded PostgreSQL 18, with RabbitMQ where one answers; then what
touches the database runs on the distribution's PostgreSQL where it lets us in. These tests wait
for real processes on a machine that others use, too: what failed runs a second time, alone. Both
runs are printed and the second ones are counted; what fails twice has failed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import subprocess
import sys

import psycopg

from tests.broker import rabbitmq
from tests.servers import VARIABLE

DISTRIBUTION = "postgresql://postgres@127.0.0.1:5432/postgres"
RABBITMQ = "amqp://guest:guest@127.0.0.1:5672//"
TOUCH_THE_DATABASE = tuple(
    f"tests/{folder}" for folder in ("pool", "runtime", "batch", "monitor", "cli", "django")
)
WALKS = (
    "tests/broker/test_walk.py", "tests/broker/test_tasks.py",
    "tests/broker/test_checks.py", "tests/broker/test_two_pools.py",
)  # fmt: skip
"""Of a worker with its beat and broker."""


MINUTES_EACH = "tests/edge"
"""Proofs with kills and outages: by ONLY=tests/edge."""


class Runs:
    """Runs of pytest, each in a process of its own."""

    def __init__(self, jobs: str, arguments: list[str]) -> None:
        self._jobs = jobs
        self._arguments = arguments
        self.again: list[str] = []
        """What had to run a second time."""

    def passes(self, what: str, *selected: str, **variables: str) -> bool:
        """Run these tests, and those that failed once more."""
        print(f"== {what}", flush=True)
        if not self._status(self._jobs, *selected, **variables):
            return True
        print(f"== {what}: what failed runs a second time, alone", flush=True)
        self.again.append(what)
        second = ("--last-failed", "--last-failed-no-failures", "none")
        return not self._status("1", *second, *selected, **variables)

    def _status(self, jobs: str, *selected: str, **variables: str) -> int:
        command = [sys.executable, "-m", "pytest", "-n", jobs, "--dist", "loadfile"]
        more = ["--no-loadscope-reorder", *selected, *self._arguments]
        environment = {**os.environ, **variables}
        return subprocess.run([*command, *more], env=environment, check=False).returncode


def answers(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError:
        return False
    return True


def lets_us_in(url: str) -> bool:
    """Whether a PostgreSQL does."""
    try:
        psycopg.connect(url, connect_timeout=3).close()
    except psycopg.Error:
        return False
    return True


def arguments() -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.everything", description=__doc__)
    parser.add_argument("--only", default="", help="files, folders and options of pytest")
    parser.add_argument(
        "--postgres", default="", help="16: the embedded one; or the URL of a server"
    )
    parser.add_argument("--jobs", default="4", help="pytest's processes")
    parser.add_argument("rest", nargs="*", help="more options of pytest, after --")
    return parser.parse_args()


def _on_the_distributions(runs: Runs) -> list[bool]:
    """The first tier and some walks: by POSTGRES= all runs there, in twice the time."""
    there, what = {VARIABLE: DISTRIBUTION}, "the distribution's PostgreSQL"
    return [
        runs.passes(what, *TOUCH_THE_DATABASE, "-m", "not test_all", **there),
        runs.passes(f"{what}, with workers", *WALKS, **there),
    ]


def main() -> int:
    """0 if all passed, at the second run at the latest."""
    asked = arguments()
    if not os.environ.get(rabbitmq.VARIABLE) and answers("127.0.0.1", 5672):
        os.environ[rabbitmq.VARIABLE] = RABBITMQ
    runs = Runs(asked.jobs, asked.rest)
    only = shlex.split(asked.only)
    on_given = only or [*TOUCH_THE_DATABASE, *WALKS]
    if asked.postgres == "16":
        results = [runs.passes("PostgreSQL 16", *on_given, TASKS_APP_TEST_POSTGRES="16")]
    elif asked.postgres:
        results = [runs.passes("the given PostgreSQL", *on_given, **{VARIABLE: asked.postgres})]
    else:
        results = [runs.passes("PostgreSQL 18", *(only or [f"--ignore={MINUTES_EACH}"]))]
        if not only and lets_us_in(DISTRIBUTION):
            results += _on_the_distributions(runs)
        elif not only:
            print("== No PostgreSQL of a distribution lets us in on port 5432: not tested there.")
    if not only:
        print(f"== {MINUTES_EACH} did not run: make test-all ONLY={MINUTES_EACH}")
    if runs.again:
        print(f"== A second run was needed {len(runs.again)} times: {', '.join(runs.again)}")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
