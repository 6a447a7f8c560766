"""Everything that must run before the day begins, each announced when it is ready."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from redis import Redis
from rich.console import Console
from sqlalchemy import Engine, create_engine

from shop import doors
from shop.figures import another_task, earlier, live_workers
from shop.mail import ADDRESS_VARIABLE
from shop.mailserver import MailServer
from shop.pace import SHORTENED, WORKER_PACE
from shop.processes import Bell, DiedError, Processes, Servers
from shop.tables import build_shop, drop_shop
from tasks_app.embedded.folder import Started, Urls
from tasks_app.embedded.process import HOST
from tasks_app.pool.schema import migrate
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.maintainer import Maintainer

WORKERS = 2
WORKER_PATIENCE_S = 60.0
QUEUE_KEY = "tasks_app:default"
"""Where Celery keeps the messages of the queue ``default``."""


class Stage:
    """Servers, schema, mail server and processes of one demo."""

    def __init__(
        self, folder: Path, console: Console, *, keep: bool, database_url: str | None = None
    ) -> None:
        self.folder = folder
        self._is_guest = database_url is not None
        self.mail = MailServer()
        self.engine: Engine
        self._console = console
        self._servers = Servers(folder, keep=keep, database_url=database_url)
        self._processes = Processes(folder)
        self.dashboard = doors.dashboard(self._processes)
        self.flower = doors.flower(self._processes)
        self._built = False

    def build(self, names: Sequence[str]) -> None:
        """Start the servers and make all tables; nobody works yet.

        Raises:
            DiedError: the database that was given holds other tasks than those of ``names``.
        """
        urls = self._servers.up(self._announce_server)
        os.environ.update(self._environment(urls))
        self.engine = create_engine(urls.database)
        self._built = True
        if self._is_guest:
            self._enter(names)
        self._make_tables(urls)
        begin = time.monotonic()
        self.mail.up()
        self._ready("mail server", begin, f"smtp://{self.mail.address}, which fails now and then")

    def tell_of_earlier_runs(self) -> None:
        """Say what the pool holds already: it stays, and is listed with the new tasks."""
        with self.engine.connect() as connection:
            number, newest = earlier(connection)
        if number:
            self._say(
                f"[yellow]![/] {number} tasks of earlier runs stay in the pool, ids up to {newest};"
                " the table and the checks below count today's alone."
            )
            anew = (
                "name an empty database"
                if self._is_guest
                else f"tasks-app down; rm -r {self.folder}"
            )
            self._say(f"  To begin anew, later: {anew}")

    def start_work(self, bell: Bell) -> None:
        """Start worker and beat; return when they wait for tasks."""
        begin = time.monotonic()
        self.start_worker()
        self._processes.start_celery("beat", "-l", "info")
        self._await_workers(bell)
        self.dashboard.open()
        self._ready("worker, beat", begin, f"{WORKERS} processes of celery -A tasks_app worker")
        self._say(f"[dim]shortened for the demo: {SHORTENED}[/]")

    def start_worker(self) -> None:
        """Start a worker; it is ready a little later."""
        self._processes.start_celery(
            "worker", "-c", str(WORKERS), "-E", "-l", "info", "--without-gossip", "--without-mingle"
        )

    def kill_worker(self) -> None:
        """End the worker and all its children with SIGKILL."""
        self._processes.kill("worker")

    def messages(self) -> int:
        """Return how many messages lie in the broker's queue."""
        with self._broker() as broker:
            return int(broker.llen(QUEUE_KEY))  # type: ignore[arg-type]

    def empty_broker(self) -> None:
        """Make the broker forget everything."""
        with self._broker() as broker:
            broker.flushall()

    def cry(self, what: str) -> None:
        """Announce an accident."""
        self._say(f"[red]⚡[/] {what}")

    def look(self) -> None:
        """Pass if all is well; announce what has begun to answer in a browser.

        Raises:
            DiedError: a process ended.
        """
        self._processes.look()
        self._servers.look()
        for door in (self.dashboard, self.flower):
            if (seconds := door.began_to_answer()) is not None:
                self._ready_line(door.title, seconds, door.url)

    def down(self) -> None:
        """Stop everything that is ours, the last started first."""
        self._processes.stop()
        self.mail.down()
        self._servers.down()
        if not self._built:
            return
        stays = self._servers.stay
        more = "PostgreSQL and Valkey stay up: tasks-app down" if stays else "the data stays"
        self._console.print(f"All processes are stopped; {more}.")

    def _broker(self) -> Redis:
        return Redis.from_url(os.environ["TASKS_APP_BROKER_URL"])

    def _enter(self, names: Sequence[str]) -> None:
        """Look at a database that is not ours before anything is written to it."""
        begin = time.monotonic()
        with self.engine.connect() as connection:
            stranger = another_task(connection, names)
            version = connection.exec_driver_sql("SHOW server_version").scalar_one()
        if stranger is not None:
            raise DiedError(
                f"The database holds tasks that are not the demo's, such as {stranger!r}. "
                "Name a database of its own: createdb tasks_app_demo"
            )
        self._ready(f"PostgreSQL {version.partition(' ')[0]}", begin, "yours")

    def _make_tables(self, urls: Urls) -> None:
        begin = time.monotonic()
        with self.engine.begin() as connection:
            drop_shop(connection)
            before, after = migrate(connection)
            build_shop(connection)
        database = Database(urls.database)
        made = Maintainer(database).run_once()
        database.dispose()
        self._ready("schema", begin, f"{before or 'empty'} -> {after}, {made} partitions made")

    def _environment(self, urls: Urls) -> dict[str, str]:
        """Return what our processes are told; they inherit it."""
        examples = str(Path(__file__).parents[1])
        return {
            **WORKER_PACE,
            "TASKS_APP_DATABASE_URL": urls.database,
            "TASKS_APP_BROKER_URL": urls.broker,
            "TASKS_APP_IMPORTS": "shop.handlers,hello",
            "PYTHONPATH": os.pathsep.join([examples, os.environ.get("PYTHONPATH", "")]).rstrip(":"),
            "PYTHONUNBUFFERED": "1",
            ADDRESS_VARIABLE: self.mail.address,
        }

    def _await_workers(self, bell: Bell) -> None:
        deadline = time.monotonic() + WORKER_PATIENCE_S
        while True:
            self.look()
            with self.engine.connect() as connection:
                if live_workers(connection) >= WORKERS:
                    return
            if time.monotonic() > deadline:
                log = self.folder / "log" / "worker.log"
                raise DiedError(f"No worker came up in {WORKER_PATIENCE_S:.0f} s. Read {log}")
            bell.wait(0.05)

    def _announce_server(self, started: Started) -> None:
        self._ready_line(
            f"{started.name} {started.version}", started.seconds, f"{HOST}:{started.port}"
        )

    def _ready(self, what: str, begin: float, more: str) -> None:
        self._ready_line(what, time.monotonic() - begin, more)

    def _ready_line(self, what: str, seconds: float, more: str) -> None:
        self._say(f"[green]✔[/] {what:<18} ready in {seconds:3.1f} s   [dim]{more}[/]")

    def _say(self, line: str) -> None:
        self._console.print(f"  {line}", soft_wrap=True)
