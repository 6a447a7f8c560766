"""``make screenshots``: write docs/images/dashboard/ anew, from a shop that runs meanwhile."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from pydantic import SecretStr
from sqlalchemy import Engine, create_engine, text

from dev.documents.screenshots import scene
from dev.documents.screenshots.camera import camera
from dev.documents.screenshots.worker import load_shop
from tasks_app import Settings
from tasks_app.dashboard.app import dashboard_app
from tasks_app.embedded.stack import temporary
from tasks_app.pool.retention import add_partition, missing_partitions
from tasks_app.pool.schema import migrate

FOLDER = Path(__file__).parents[3] / "docs" / "images" / "dashboard"
LOGIN = {"username": "mira", "password": "secret"}
WORKERS = (
    ("node-a", "default", "payments", "search", "shipping"),
    ("node-a", "default", "payments", "search", "shipping"),
    ("node-b", "default", "payments", "reports"),
    ("node-c", "imports"),
)
PATIENCE_S = 180.0


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all is stopped, too
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", type=Path, help="write PNG files into this folder, too")
    parser.add_argument("--only", action="append", help="only these pages, by their names")
    parser.add_argument(
        "--stay", action="store_true", help="serve the shop until Ctrl-C, no pictures"
    )
    options = parser.parse_args()
    load_shop()
    with temporary() as stack, _playing(stack.urls.database) as engine:
        settings = Settings(
            database_url=SecretStr(stack.urls.database), dashboard_auth=SecretStr("mira:secret")
        )
        with _served(settings) as address:
            if options.stay:
                print(address)
                threading.Event().wait()
            _take(engine, address, options)


def _take(engine: Engine, address: str, options: argparse.Namespace) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    pages = _pages(engine)
    wanted = {name: path for name, path in pages.items() if name in (options.only or pages)}
    with camera(address, LOGIN, FOLDER) as taking:
        taking.plain = options.plain
        for name, size in taking.take(wanted):
            print(f"{size:>7,} {name}")


def _pages(engine: Engine) -> dict[str, str]:
    """Return the address of each page by the name of its picture."""

    def one(query: str) -> str:
        with engine.connect() as connection:
            return str(connection.execute(text(query)).scalar_one())

    card = "FROM task_error WHERE name = 'orders.charge_card' ORDER BY finished_at DESC LIMIT 1"
    fingerprint = one(f"SELECT encode(fingerprint, 'hex') {card}")
    return {
        "overview": "/",
        "tasks": "/tasks",
        "task": f"/tasks/{one(f'SELECT id {card}')}",
        "errors": "/errors",
        "error": f"/errors/{fingerprint}",
        "requeue": f"/bulks/new?action=requeue&fingerprint={fingerprint}",
        "schedules": "/schedules",
        "schedule": "/schedules/stock.sync",
        "queues": "/queues",
        "queue": "/queues/payments",
        "groups": "/groups",
        "group": f"/groups/{one('SELECT id FROM task_group WHERE total < 100 LIMIT 1')}",
        "batches": "/batches",
        "batch": f"/batches/{one('SELECT id FROM task_batch')}",
        "workers": "/workers",
        "audit": "/audit",
    }


@contextmanager
def _playing(url: str) -> Iterator[Engine]:
    """Fill a new database, and let real workers work until they have done what they can."""
    engine = create_engine(url)
    with engine.begin() as connection:
        migrate(connection)
        days = missing_partitions(connection)
    for day in days:
        with engine.begin() as connection:
            add_partition(connection, day)
    with engine.begin() as connection:
        scene.set_up(connection)
    given = {**os.environ, "TASKS_APP_DATABASE_URL": url, "TASKS_APP_BROKER_URL": ""}
    command = (sys.executable, "-m", "dev.documents.screenshots.worker")
    workers = [subprocess.Popen([*command, *each], env=given) for each in WORKERS]  # noqa: S603
    try:
        _until(lambda: _played(engine))
        with engine.begin() as connection:
            scene.go_on(connection)
        _until(lambda: _played(engine))
        scene.finish(engine)
        yield engine
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        engine.dispose()


def _played(engine: Engine) -> bool:
    with engine.connect() as connection:
        return scene.is_played(connection)


@contextmanager
def _served(settings: Settings) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(dashboard_app(settings), lifespan="off", log_level="warning")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        _until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def _until(is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > ends:
            raise SystemExit(f"The shop is not ready after {PATIENCE_S:.0f} s.")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
