"""The load, in a process of its own whose TASKS_APP_SCHEMA is that of the measurement."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial

from sqlalchemy import Connection

from dev.benchmarks.sizing.measured import DrainMeasured, Measured
from dev.benchmarks.sizing.probe import (
    ask,
    insert_effect,
    make_effects,
    read_settings,
    without_flush,
)
from dev.benchmarks.sizing.schema import guard, is_there
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.creation import NewTask
from tasks_app.pool.schema import be_patient
from tasks_app.pool.tables import SCHEMA
from tasks_app.runtime.api.producer import create_task, create_tasks
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.runtime.leader.maintainer import Maintainer
from tasks_app.runtime.migration import migrate
from tasks_app.runtime.worker.standalone import run_work

BULK = 1_000
MOST = 40_000
"""Tasks of a drain."""
WARM = 20
_SHARES = {"ask": 0.03, "commit": 0.1, "quick": 0.05, "one": 0.08, "bulk": 0.1, "drain": 0.22}
"""Of the seconds; what is left is for the start of processes and tables."""
_BEGIN, _END = 0.1, 0.9
"""The middle of a drain, which is measured."""


class Marks:
    """When handlers ran, and how much CPU the process had used by then."""

    def __init__(self) -> None:
        self._found: list[tuple[float, float]] = []

    def add(self) -> None:
        self._found.append((time.perf_counter(), time.process_time()))

    def clear(self) -> None:
        self._found.clear()

    def drained(self) -> DrainMeasured:
        number = len(self._found)
        first, last = int(number * _BEGIN), int(number * _END) - 1
        (began, cpu), (ended, cpu_then) = self._found[first], self._found[last]
        done, span = last - first, max(ended - began, 1e-6)
        return DrainMeasured(number, done / span, (cpu_then - cpu) / done * 1e6)


class Load:
    """One measurement; ``is_orphan`` ends it between two of its parts."""

    def __init__(self, settings: Settings, seconds: float) -> None:
        self._settings = settings
        self._seconds = {name: share * seconds for name, share in _SHARES.items()}
        self._database = Database(settings.database, prepare=settings.prepare)
        self._marks = Marks()
        self._registry = Registry()
        self._parent = os.getppid()

        @handler("bench.group", registry=self._registry)
        def group(_ctx: TaskContext) -> None:
            self._marks.add()

        @handler("bench.insert", registry=self._registry)
        def insert(ctx: TaskContext) -> None:
            insert_effect(ctx.connection)
            self._marks.add()

    def run(self) -> Measured:
        """Make the tables, measure, and return what was found."""
        engine = self._database.migration_engine()
        try:
            with engine.connect() as guarding:
                be_patient(guarding)
                guard(guarding, str(SCHEMA))
                if not is_there(guarding, str(SCHEMA)):  # a migration would make it, unmarked
                    raise SystemExit("The schema of this measurement is gone.")
                guard(guarding, str(SCHEMA))  # so that no snapshot of the look stays
                return self._run_guarded()
        finally:
            engine.dispose()

    def _run_guarded(self) -> Measured:
        began = time.perf_counter()
        self._check()
        migrate(self._database)
        self._check()
        Maintainer(self._database).run_once()
        try:
            with self._database.begin() as connection:
                make_effects(connection)
            settings = self._settings_of_handlers()
            (trip_ms, way_ms), commits, quick_ms = self._answers()
            create_one, create_bulk = self._creations()
            groups, inserts = self._drain("bench.group"), self._drain("bench.insert")
        finally:
            self._database.dispose()
        return Measured(
            settings=settings,
            round_trip_ms=trip_ms,
            way_ms=way_ms,
            commit_ms=statistics.median(commits),
            commit_p99_ms=sorted(commits)[int(0.99 * len(commits))],
            flush_ms=max(0.0, statistics.median(commits) - quick_ms),
            create_one=create_one,
            create_bulk=create_bulk,
            groups=groups,
            inserts=inserts,
            seconds=time.perf_counter() - began,
        )

    def _settings_of_handlers(self) -> dict[str, str]:
        """Return those of the server and of the role: our own connections set some."""
        engine = self._database.migration_engine()
        try:
            with engine.connect() as connection:
                return read_settings(connection)
        finally:
            engine.dispose()

    def _answers(self) -> tuple[tuple[float, float], list[float], float]:
        """Return milliseconds: of a round trip, of single commits, of one that is not flushed."""
        with self._database.single() as connection:
            trip = self._trip(partial(ask, connection))
            insert = partial(insert_effect, connection)
            commits = self._times("commit", insert)
            take_back = without_flush(connection)
            try:
                quick_ms = statistics.median(self._times("quick", insert))
            finally:
                take_back()
        return trip, commits, quick_ms

    def _trip(self, act: Callable[[], None]) -> tuple[float, float]:
        """Return a round trip, and what of it is no CPU, if the other end takes as much as we."""
        began_s = time.thread_time()
        spans = self._times("ask", act)
        cpu_ms = 1e3 * (time.thread_time() - began_s) / (len(spans) + WARM)
        trip_ms = statistics.median(spans)
        return trip_ms, max(0.0, trip_ms - 2 * cpu_ms)

    def _creations(self) -> tuple[float, float]:
        """Return calls a second of one task, and tasks a second of many."""

        def one(connection: Connection) -> None:
            create_task(connection, "bench.group")

        def many(connection: Connection) -> None:
            create_tasks(connection, [NewTask("bench.group")] * BULK)

        def transaction(act: Callable[[Connection], None]) -> None:
            with self._database.begin() as connection:
                act(connection)

        ones = self._times("one", partial(transaction, one))
        most = MOST // BULK
        bulks = self._times("bulk", partial(transaction, many), warm=1, most=most)
        return 1e3 / statistics.median(ones), 1e3 * BULK / statistics.median(bulks)

    def _drain(self, name: str) -> DrainMeasured:
        """Drain some tasks to see how many there is time for, and then so many."""
        if name == "bench.group":
            return self._run()  # what lies there since it was created
        self._create(name, 100)
        rate = self._run().rate
        self._create(name, min(MOST, max(100, int(rate * self._seconds["drain"]))))
        return self._run()

    def _create(self, name: str, number: int) -> None:
        with self._database.begin() as connection:
            create_tasks(connection, [NewTask(name)] * number)

    def _run(self) -> DrainMeasured:
        self._check()
        self._marks.clear()
        run_work(
            self._settings, registry=self._registry, drain=True, queues=["default"], middleware=()
        )
        return self._marks.drained()

    def _times(
        self, part: str, act: Callable[[], None], *, warm: int = WARM, most: int = 20_000
    ) -> list[float]:
        """Return milliseconds of each call, for as long as the part may take."""
        self._check()
        for _ in range(warm):
            act()
        found: list[float] = []
        until = time.perf_counter() + self._seconds[part]
        while len(found) < most and (time.perf_counter() < until or len(found) < warm):
            began = time.perf_counter()
            act()
            found.append(1e3 * (time.perf_counter() - began))
        return found

    def _check(self) -> None:
        if os.getppid() != self._parent:
            raise SystemExit("The command that began this is gone.")
