"""One run of one system: a database of its own, a folder for its marks, its processes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from dev.benchmarks.environments import FOLDER, PROJECT, ask
from dev.benchmarks.marks import Marks
from dev.benchmarks.processes import Service, cpu_seconds
from dev.benchmarks.servers import Servers
from dev.benchmarks.systems.system import System


@dataclass(slots=True)
class Run:
    """What a scenario works with."""

    servers: Servers
    system: System
    database: str
    folder: Path
    n: int
    after: int = 0
    """The highest id that was there before."""
    variables: dict[str, str] = field(default_factory=dict)
    """For the system's processes, beside its own."""
    services: list[Service] = field(default_factory=list)

    @property
    def marks(self) -> Marks:
        """What the handlers write down."""
        return Marks(self.folder)

    def play(self, verb: str, patience_s: float = 120, **arguments: Any) -> Any:
        """Let the system's own code carry out a verb, and return its answer."""
        command = self.system.environment.play(verb, json.dumps(arguments))
        return ask(command, self._variables(), patience_s)

    def start(self) -> None:
        """Start the system's processes."""
        for number, command in enumerate(self.system.services):
            log = self.folder / f"service-{number}.log"
            self.services.append(Service(command, self._variables(), log))

    def end(self) -> None:
        """End them, in the order of their start."""
        for service in self.services:
            service.end()
        self.services.clear()

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Ask the run's database; ``{after}`` stands for the highest id that was there before."""
        return self.servers.ask(statement.format(after=self.after), self.database)

    def unfinished(self) -> int:
        """Count the rows that are to be done; 0 for a system that keeps none."""
        relation = self.system.unfinished
        return 0 if relation is None else int(self.ask(f"SELECT count(*) FROM {relation}")[0][0])

    def cpu_seconds(self) -> tuple[float, float, float]:
        """Return what the system's workers, its beat and its backends have used."""
        used = [0.0, 0.0]
        for service in self.services:
            used["beat" in service.command] += cpu_seconds(service.tree())
        backends = self.servers.backends(self.database)
        servers = [psutil.Process(pid) for pid in backends if psutil.pid_exists(pid)]
        return used[0], used[1], cpu_seconds(servers)

    def database_work(self) -> tuple[int, int]:
        """Return the transactions and bytes of log so far; exact once the backends have ended.

        It is asked on another database, so that the question is not among the answers.
        """
        statement = f"""
            SELECT xact_commit + xact_rollback,
                CAST(pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0') AS bigint)
            FROM pg_stat_database WHERE datname = '{self.database}'
        """
        transactions, wal = self.servers.ask(statement)[0]
        return transactions, wal

    def _variables(self) -> dict[str, str]:
        url = self.servers.url(self.database)
        return {
            "PYTHONPATH": str(PROJECT),
            "BENCH_DATABASE_URL": url,
            "BENCH_BROKER_URL": self.servers.broker_url,
            "BENCH_MARKS": str(self.folder),
            "BENCH_N": str(self.n),
            "BENCH_PARTIES": str(self.system.parties),
            "TASKS_APP_DATABASE_URL": url.replace("postgresql:", "postgresql+psycopg:"),
            "TASKS_APP_BROKER_URL": self.servers.broker_url,
            "TASKS_APP_RUN_DIR": str(self.folder),
            **self.system.variables,
            **self.variables,
        }


class Stage:
    """Servers, and for each system a database with its tables, to be copied."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self._templates: dict[tuple[object, ...], str] = {}

    @contextmanager
    def run(self, system: System, n: int, fill: tuple[str, int] | None = None) -> Iterator[Run]:
        """Yield a run on a fresh database; end and remove everything afterwards.

        ``fill``: what the database has already seen, or will see one day, and how many of them.
        """
        system.environment.ensure()
        template = self._filled(system, *fill) if fill else self._template(system)
        (FOLDER / "runs").mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{system.name}-", dir=FOLDER / "runs"))
        run = Run(
            self.servers, system, self.servers.create(template), folder, n, fill[1] if fill else 0
        )
        self.servers.forget_messages()
        try:
            yield run
        finally:
            run.end()
            self.servers.drop(run.database)
        shutil.rmtree(folder)  # that of a failed run stays, with its logs

    def _template(self, system: System) -> str:
        key = tuple(system.environment.play())
        if key not in self._templates:
            database = self.servers.create()
            self.servers.ask("CREATE TABLE effect (i bigint NOT NULL)", database)
            Run(self.servers, system, database, FOLDER, 0).play("install")
            self._templates[key] = database
        return self._templates[key]

    def _filled(self, system: System, fill: str, rows: int) -> str:
        key = (*system.environment.play(), fill, rows)
        if key not in self._templates:
            database = self.servers.create(self._template(system))
            for statement in system.fills[fill]:
                self.servers.ask(statement.format(rows=rows), database)
            self.servers.ask("VACUUM ANALYZE", database)
            self._templates[key] = database
        return self._templates[key]
