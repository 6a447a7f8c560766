"""Real workers and beats on the session's servers. A module shares them; each test has its rows."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from tasks_app import NewTask, cancel_task, create_tasks
from tasks_app.domain.tasks.records import Attempt, Task
from tasks_app.pool.tasks import browse
from tests.broker.celery_process import CeleryProcess
from tests.broker.rabbitmq import NO_RABBITMQ, Rabbit, virtual_host, why_not
from tests.broker.side_by_side import backend, sample  # noqa: F401  fixtures
from tests.clock import until
from tests.tiers import starts_processes

POOLS = "task_pending, task_completed, task_error, task_attempt, effect"
_numbers = itertools.count(1)


class House:
    """Starts processes on one database and one broker database, and looks at the rows."""

    def __init__(self, engine: Engine, url: str, broker: Any, folder: Path) -> None:
        self.engine = engine
        self.url = url
        self.broker = broker
        self.number = next(_numbers)
        self.run_folder = folder / "run"
        self._folder = folder
        self._started: list[CeleryProcess] = []
        self._names = itertools.count(1)

    # -- processes

    def environment(self, **more: str) -> dict[str, str]:
        """What every process of this house is told; spans are short, so that tests are."""
        return {
            "TASKS_APP_DATABASE_URL": self.url,
            "TASKS_APP_BROKER_URL": self.broker.url_of(self.number % 16),
            "TASKS_APP_IMPORTS": "house_handlers",
            "TASKS_APP_LEASE": "3s",
            "TASKS_APP_GIVE_BACK_AFTER": "500ms",
            "TASKS_APP_RUN_DIR": str(self.run_folder),
            **more,
        }

    def start(
        self, *arguments: str, folder: Path | None = None, app: str = "tasks_app", **more: str
    ) -> CeleryProcess:
        """Start ``celery -A tasks_app``, or another app, with these arguments."""
        folder = folder or self._folder / f"process-{next(self._names)}"
        process = CeleryProcess(folder, self.environment(**more), *arguments, app=app)
        self._started.append(process)
        return process

    def worker(
        self, *arguments: str, children: int = 2, ready: bool = True, **more: Any
    ) -> CeleryProcess:
        """Start a worker; with ``ready``, wait until its children are known to the scan."""
        name = f"house{self.number}-{next(self._names)}"
        arguments = ("-c", str(children), "-n", f"{name}@%h", "-l", "INFO", *arguments)
        process = self.start("worker", *arguments, **more)
        process.name = name
        if ready:
            self.ready(process, children)
        return process

    def ready(self, process: CeleryProcess, children: int = 2, timeout_s: float = 90.0) -> None:
        """Wait until the worker's children are known to the scan."""
        alive = "SELECT count(*) FROM task_worker WHERE node LIKE :node"

        def known() -> bool:
            return not process.alive or self.sql(alive, node=f"{process.name}@%") == children

        until(known, timeout_s, f"the start of {process.name}")
        assert process.alive, process.log()

    def beat(self, **more: str) -> CeleryProcess:
        process = self.start("beat", "-l", "INFO", **more)
        process.says("beat: Starting", 90)
        return process

    def end_since(self, number: int) -> None:
        for process in self._started[number:]:
            process.end()

    @property
    def started(self) -> int:
        return len(self._started)

    def end(self) -> None:
        self.end_since(0)
        self.sql("DELETE FROM task_worker")
        self.sql("DELETE FROM task_lease")

    # -- rows

    def clean(self) -> None:
        """Empty the pools; workers stay known, and may be in the way."""
        self.sql("CREATE TABLE IF NOT EXISTS effect (task_id bigint, note text)")
        until(self._emptied)

    def _emptied(self) -> bool:
        try:
            self.sql(f"TRUNCATE {POOLS}")
        except OperationalError:  # a deadlock with a settle: workers are alive
            return False
        return True

    def create(self, name: str, number: int = 1, payload: Any = None, **options: Any) -> list[int]:
        with self.engine.begin() as connection:
            return create_tasks(connection, [NewTask(name, payload, options)] * number)  # type: ignore[arg-type]

    def sql(self, statement: str, **values: Any) -> Any:
        """Execute and commit; return the first column of the first row if there is one."""
        with self.engine.begin() as connection:
            result = connection.execute(text(statement), values)
            return result.scalar() if result.returns_rows else None

    def task(self, task_id: int) -> Task:
        """Return the task from whichever pool it lies in."""
        with self.engine.connect() as connection:
            task = browse.get(connection, task_id)
        assert task is not None
        return task

    def attempts(self, task_id: int) -> list[Attempt]:
        with self.engine.connect() as connection:
            return browse.failed_attempts(connection, task_id)

    def over(self, ids: Sequence[int], timeout_s: float = 30.0) -> dict[str, int]:
        """Wait until all tasks are over; return how many ended in which state."""
        left = "SELECT count(*) FROM task_pending WHERE id = ANY(:ids)"
        until(lambda: self.sql(left, ids=ids) == 0, timeout_s, "the end of all tasks")
        with self.engine.connect() as connection:
            counted = text(
                "SELECT state, count(*) FROM task_all WHERE id = ANY(:ids) GROUP BY state"
            )
            return {row[0]: row[1] for row in connection.execute(counted, {"ids": ids})}

    def effects(self) -> tuple[int, int]:
        """Return how many effects there are, and of how many tasks."""
        with self.engine.connect() as connection:
            counted = text("SELECT count(*), count(DISTINCT task_id) FROM effect")
            return tuple(connection.execute(counted).one())  # type: ignore[return-value]


@pytest.fixture(scope="module")
@starts_processes
def rabbitmq() -> Iterator[Rabbit]:
    """A virtual host of RabbitMQ; who wants it is skipped where there is none."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"{NO_RABBITMQ}: {reason}")
    with virtual_host() as rabbit:
        yield rabbit


@pytest.fixture(scope="module")
@starts_processes
def house(
    request: pytest.FixtureRequest,
    shared_engine: Engine,
    database_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    """Processes that live as long as a module's tests.

    On Valkey; a module may name other brokers' fixtures, and is run on each, with
    ``@pytest.mark.parametrize("house", ["broker", "rabbitmq"], indirect=True)``.
    """
    broker = request.getfixturevalue(getattr(request, "param", "broker"))
    house = House(shared_engine, database_url, broker, tmp_path_factory.mktemp("house"))
    house.sql("DELETE FROM task_worker")
    house.clean()
    yield house
    house.end()


@pytest.fixture(autouse=True)
def _clean(request: pytest.FixtureRequest) -> Iterator[None]:
    if "house" not in request.fixturenames:
        yield
        return
    house = request.getfixturevalue("house")
    house.clean()
    started = house.started
    yield
    house.end_since(started)


@pytest.fixture
def alone(house: House) -> Iterator[None]:
    """Each of these starts its own processes, and leaves none to the next."""
    yield
    house.end()


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


Start = Callable[..., CeleryProcess]


GOOD, FLAKY, BAD, CANCELLED = 10, 3, 2, 2
STATES = {"SUCCEEDED": GOOD + FLAKY, "FAILED": BAD, "CANCELLED": CANCELLED}


def begin_life(house: House, queue: str) -> list[int]:
    """Create tasks that succeed, that need a retry, that fail, and that are cancelled in time."""
    later = house.create("ok", CANCELLED, queue=queue, delay="1h")
    with house.engine.begin() as connection:
        for task_id in later:
            cancel_task(connection, task_id)
    return [
        *later,
        *house.create("ok", GOOD, queue=queue),
        *house.create("flaky", FLAKY, queue=queue),
        *house.create("bad", BAD, queue=queue),
    ]


def effects_of(house: House, ids: list[int]) -> tuple[int, int]:
    """Return how many effects these tasks have, and how many of the tasks have one."""
    counted = "SELECT {} FROM effect WHERE task_id = ANY(:ids)"
    return (
        house.sql(counted.format("count(*)"), ids=ids),
        house.sql(counted.format("count(DISTINCT task_id)"), ids=ids),
    )
