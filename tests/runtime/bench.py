"""A workbench: handlers of a test, children on the shared database, and a look at the rows."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from dev.torture.fault_proxy import FaultProxy
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.tasks.records import Attempt, Task, TaskId
from tasks_app.pool.tasks import browse
from tasks_app.runtime.api.producer import create_task
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handler_db.statements import PROVEN
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.runtime.leader import maintainer
from tasks_app.runtime.leader.maintainer import Maintainer
from tasks_app.runtime.run_times import HOLD_S
from tasks_app.runtime.scan import ScanPosition
from tasks_app.runtime.scoreboard import Scoreboard
from tasks_app.runtime.worker.child import Child
from tasks_app.runtime.worker.standalone import StandaloneWorker
from tests.clock import until
from tests.factory import do, plain_url, rows_of, run_sql, some

R = TypeVar("R")
QUEUE = "default"
EFFECT = "INSERT INTO effect (task_id, note) VALUES (:id, :note)"


class Bench:
    """What a runtime test needs; everything started here is stopped by the fixture."""

    def __init__(self, engine: Engine, url: str, folder: Path) -> None:
        self.engine = engine
        self.url = url
        self.registry = Registry()
        self.slots = Scoreboard(folder / "slots")
        self.runs: list[Any] = []
        """For handlers to note that they ran."""
        self.tuning: dict[str, Any] = {}
        """For each child: what to set, by its path, as ``run_times.fast_s``."""
        self.children: list[Child] = []
        self._threads: list[threading.Thread] = []
        self._ends: list[Callable[[], object]] = []

    # -- arrange

    def settings(self, **options: Any) -> Settings:
        """Settings for this database; short spans where the default would make a test wait."""
        given = {"scan_interval": 0.05, **options}
        return Settings(database_url=options.pop("url", self.url), **given)

    def handler(self, name: str = "t", **options: Any) -> Callable[..., Any]:
        """Declare a handler in the bench's own registry."""
        return handler(name, registry=self.registry, **options)

    def succeeding(self, name: str = "t", **options: Any) -> None:
        """Declare a handler that notes its task's id."""

        @self.handler(name, **options)
        def ok(ctx: Any) -> None:
            self.runs.append(ctx.task_id)

    def raising(self, error: BaseException, name: str = "t", **options: Any) -> None:
        """Declare a handler that notes its task's id and raises."""

        @self.handler(name, **options)
        def bad(ctx: Any) -> None:
            self.runs.append(ctx.task_id)
            raise error

    def writing(self, name: str = "t", **options: Any) -> None:
        """Declare a handler that writes one effect."""

        @self.handler(name, **options)
        def write(ctx: Any) -> None:
            effect(ctx)

    def create(self, name: str = "t", payload: Any = None, **options: Any) -> TaskId:
        return self.do(create_task, name, payload, **options)

    def do(self, act: Callable[..., R], *arguments: Any, **options: Any) -> R:
        """Call a function with a connection, and commit."""
        return do(self.engine, act, *arguments, **options)

    def sql(self, statement: str, **values: Any) -> Any:
        """Execute and commit; return the first column of the first row if there is one."""
        return run_sql(self.engine, statement, **values)

    def rows(self, statement: str, **values: Any) -> list[Any]:
        return rows_of(self.engine, statement, **values)

    @property
    def plain_url(self) -> str:
        return plain_url(self.url)

    # -- act

    def child(
        self,
        *,
        start: bool = True,
        threads: int = 1,
        extra_threads: int = 0,
        together: bool = True,
        **options: Any,
    ) -> Child:
        """Make a child, start its housekeeper; ``together``: at first it claims ten at a time."""
        child = Child(
            self.settings(**options),
            self.registry,
            self.slots,
            queues=(QUEUE,),
            node="test",
            threads=threads,
            extra_threads=extra_threads,
        )
        self.children.append(child)
        for path, value in self.tuning.items():
            part, _, name = path.rpartition(".")
            assert hasattr(attrgetter(part)(child), name), path
            setattr(attrgetter(part)(child), name, value)
        while together and child.executor.run_times.next_group(10) < 10:
            child.executor.run_times.learn("before the test", HOLD_S / 10)
        if start:
            child.start()
        return child

    def work(
        self,
        *,
        concurrency: int = 1,
        front: ScanPosition | None = None,
        **options: Any,
    ) -> StandaloneWorker:
        child = self.child(extra_threads=concurrency - 1, **options)
        names = set(child.identity.handlers)
        return StandaloneWorker(self.settings(**options), child, (QUEUE,), names, front)

    def drain(self, **options: Any) -> None:
        """Work in this thread until nothing is due, and stop in order."""
        self.work(**options).run(drain=True)
        self.children[-1].stop()

    def run_one(self, name: str = "t", payload: Any = None, **options: Any) -> TaskId:
        task_id = self.create(name, payload, **options)
        self.drain()
        return task_id

    def execute(self, ids: Iterable[int], **options: Any) -> None:
        """Carry out one message in this thread, and stop in order."""
        child = self.child(**options)
        child.execute(list(ids))
        child.stop()

    def execute_one(self, name: str = "t", payload: Any = None, **options: Any) -> TaskId:
        task_id = self.create(name, payload, **options)
        self.execute([task_id])
        return task_id

    def beside(self, function: Callable[..., object], *arguments: Any) -> threading.Thread:
        """Run something in a thread; the test's end waits for it."""
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def at_end(self, function: Callable[[], object]) -> None:
        """Call this before children are stopped, so that a failed test leaves nobody waiting."""
        self._ends.append(function)

    def database(self) -> Database:
        database = Database(self.url)
        self.at_end(database.dispose)
        return database

    @contextmanager
    def proxy(self, only: bytes | None = None) -> Iterator[tuple[FaultProxy, str]]:
        """Stand between; return the way through it, too."""
        url = make_url(self.url)
        with FaultProxy((url.host or "", url.port or 0), only=only) as proxy:
            yield proxy, url.set(port=proxy.port).render_as_string(hide_password=False)

    @asynccontextmanager
    async def async_engine(self) -> AsyncIterator[AsyncEngine]:
        engine = create_async_engine(self.url)
        try:
            yield engine
        finally:
            await engine.dispose()

    @asynccontextmanager
    async def async_session(self) -> AsyncIterator[AsyncSession]:
        """A session that commits at its end."""
        async with self.async_engine() as engine, AsyncSession(engine) as session, session.begin():
            yield session

    def event(self) -> threading.Event:
        """Return an event that is set at the latest when the test ends."""
        event = threading.Event()
        self.at_end(event.set)
        return event

    def close(self) -> None:
        for end in self._ends:
            end()
        for child in self.children:
            child.inflight.stop()
        for thread in self._threads:
            thread.join(10)
        for child in self.children:
            child.stop()

    # -- look

    def task(self, task_id: int) -> Task:
        """Return the task from whichever pool it lies in."""
        return some(self.do(browse.get, task_id))

    def state(self, task_id: int) -> str:
        return self.task(task_id).state.value

    def error(self, task_id: int) -> str:
        return self.task(task_id).error or ""

    def states(self, ids: Iterable[int]) -> list[str]:
        return [self.state(task_id) for task_id in ids]

    def attempts(self, task_id: int) -> list[Attempt]:
        """Return the attempts that did not succeed."""
        return self.do(browse.failed_attempts, task_id)

    def effects(self, task_id: int) -> int:
        """Count what the task's handlers committed."""
        return self.sql("SELECT count(*) FROM effect WHERE task_id = :id", id=task_id)


def effect(ctx: Any, note: str = "") -> None:
    """Write one row through the handler's session."""
    ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": note})


NOW_DUE = "UPDATE task_pending SET due_at = statement_timestamp(), scan_at = statement_timestamp()"


def due_in_s(bench: Bench, task_id: int) -> float:
    return float(
        bench.sql(
            "SELECT extract(epoch FROM due_at - statement_timestamp()) FROM task_pending"
            " WHERE id = :id",
            id=task_id,
        )
    )


def own_maintainer(bench: Bench, holder: str = "m", **timing: float) -> Maintainer:
    database = bench.database()
    for name, value in timing.items():
        bench.at_end(partial(setattr, maintainer, name.upper(), getattr(maintainer, name.upper())))
        setattr(maintainer, name.upper(), value)
    return Maintainer(database, holder)


def warm(child: Child, name: str = "t") -> Child:
    """Let it know already that these tasks are short, and claim many at once."""
    for _ in range(30):
        child.executor.run_times.learn(name, 0.0001)
        child.executor.run_times.next_group(500)
    return child


def known_as_writes(*queries: str) -> None:
    """Let this process know already that these texts are writes, as after their first run."""
    PROVEN.update(queries)


def carry_out(bench: Bench, ids: list[int], **options: Any) -> None:
    child = warm(bench.child(**options))
    child.execute(ids)
    until(lambda: child.inflight.empty)
    child.stop()


def run_many(bench: Bench, number: int, **options: Any) -> list[int]:
    """Create so many tasks with the payload ``{"n": …}``, and carry them out."""
    ids = [bench.create(payload={"n": n}) for n in range(number)]
    carry_out(bench, ids, **options)
    return [int(task_id) for task_id in ids]
