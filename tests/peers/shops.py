"""The systems that the guides lead away from, and a shop on disk that is moved in stages."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from dev.benchmarks.environments import FOLDER, PEERS, MissingError, Virtual
from tests.clock import until
from tests.environment import run_program
from tests.releases import NO_PEER

HERE = Path(__file__).parent
PINS = {
    "rq": HERE / "rq",
    "procrastinate": PEERS / "procrastinate",
    "pgqueuer": PEERS / "pgqueuer",
    "django-celery-outbox": HERE / "django_celery_outbox",
}


def version_of(package: str) -> str:
    """The one that is pinned, and so the one that the guide is about."""
    pins = (PINS[package] / "requirements.txt").read_text()
    [version] = re.findall(rf"^{package}==([\d.]+)", pins, re.MULTILINE)
    return version


def programs_of(package: str) -> Path:
    """The folder of its programs, Python among them; skips where it cannot be had."""
    environment = Virtual(PINS[package].name, (package,), PINS[package])
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # files of tests run side by side
        try:
            environment.ensure()
        except MissingError as missing:
            pytest.skip(f"{NO_PEER}: {missing}")
    return environment.folder / "bin"


def both(*folders: Path) -> str:
    """PYTHONPATH of a project that has our package beside theirs."""
    ours = sysconfig.get_path("purelib")
    return ":".join([*map(str, folders), str(HERE.parents[1]), ours])


OUTSIDE = """
import os
import psycopg

def mail(kind, order_id):
    with psycopg.connect(os.environ["PGDSN"], autocommit=True) as connection:
        done = (kind, order_id, os.environ.get("WHO", "tasks_app"))
        connection.execute("INSERT INTO shop_done VALUES (%s, %s, %s)", done)

report = mail
"""
"""What the functions of the guides call."""
DONE = "CREATE TABLE IF NOT EXISTS shop_done (kind text, order_id bigint, by_whom text)"


KINDS = ("receipt", "points", "warehouse")
_LIKE = {
    "receipt": {},
    "points": {"send_receipt": "grant_points", "receipt.send": "points.grant"},
    "warehouse": {"send_receipt": "tell_warehouse", "receipt.send": "warehouse.tell"},
}


def handlers_of(handler: str, kinds: Sequence[str]) -> str:
    """The handler that a guide shows, and its like for the other functions of its shop."""
    code = ""
    for kind in kinds:
        each = handler.replace("def receipt", f"def {kind}")
        for old, new in _LIKE[kind].items():
            each = each.replace(old, new)
        code += each
    return code


class Shop:
    """Its files, and the two programs that work for it."""

    def __init__(self, folder: Path, programs: Path, engine: Engine, broker: str) -> None:
        self.folder, self.programs, self.engine = folder, programs, engine
        self.url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        self.environment = {
            **{name: value for name, value in os.environ.items() if "TASKS_APP_" not in name},
            "PYTHONPATH": both(folder),
            "PGDSN": self.url,
            "REDIS": broker,
            "TASKS_APP_DATABASE_URL": engine.url.render_as_string(hide_password=False),
            "TASKS_APP_IMPORTS": "shop.handlers",
            "TASKS_APP_SCAN_INTERVAL": "0.1",
            "TASKS_APP_RUN_DIR": str(folder / "run"),
        }
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE IF EXISTS shop_done"))
            connection.execute(text(DONE))

    @contextmanager
    def schema(self, name: str) -> Iterator[None]:
        """A schema for the other system's tables and the shop's, before that of the pool."""
        url = self.engine.url
        self.environment |= {
            "PGHOST": str(url.query.get("host", url.host or "")),
            "PGPORT": str(url.query.get("port", url.port or "")),
            "PGUSER": url.username or "",
            "PGPASSWORD": str(url.password or ""),
            "PGDATABASE": url.database or "",
            "PGOPTIONS": f"-c search_path={name},public",
        }
        with self.engine.begin() as connection:
            connection.exec_driver_sql(f"DROP SCHEMA IF EXISTS {name} CASCADE")
            connection.exec_driver_sql(f"CREATE SCHEMA {name}")
            connection.exec_driver_sql(f"CREATE TABLE {name}.guide_order (id bigint PRIMARY KEY)")
        yield
        with self.engine.begin() as connection:
            connection.exec_driver_sql(f"DROP SCHEMA {name} CASCADE")

    def write(self, **files: str) -> None:
        (self.folder / "shop").mkdir(exist_ok=True)
        for name, code in {"__init__": "", "outside": OUTSIDE, **files}.items():
            (self.folder / "shop" / f"{name}.py").write_text(code)

    def run(self, code: str) -> str:
        done = run_program(
            [self.programs / "python", "-c", code],
            env=self.environment,
            cwd=self.folder,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def serving(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        log = self.folder / f"{Path(arguments[-1]).name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [self.programs / "python", *arguments],
                env={**self.environment, "WHO": arguments[1]},
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            try:
                yield process
            finally:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(10)

    def done(self) -> Counter[tuple[str, int]]:
        return Counter(row[:2] for row in self._rows())

    def wait_for(self, effects: int) -> None:
        until(lambda: len(self.makers()) >= effects, 60, f"effect {effects}")

    def makers(self) -> dict[tuple[str, int], str]:
        return {row[:2]: row[2] for row in self._rows()}

    def _rows(self) -> Sequence[tuple[str, int, str]]:
        with self.engine.connect() as connection:
            found = connection.execute(text("SELECT kind, order_id, by_whom FROM shop_done"))
            return [(kind, order_id, by_whom) for kind, order_id, by_whom in found]
