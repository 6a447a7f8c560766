"""tasks_app as a producer sees it."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import psycopg
from sqlalchemy import MetaData, Table, create_engine, event, insert
from sqlalchemy.orm import Session

from dev.benchmarks.marks import now
from dev.benchmarks.peers.verbs import DATABASE, WARM, Instants, answer, spread
from tasks_app import (
    Breaker,
    Flow,
    NewTask,
    TaskOptions,
    change_queue,
    create_flow,
    create_task,
    create_tasks,
    pause_queue,
)
from tasks_app.domain.flow_control.circuit_breaker import BreakerMode
from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.domain.flows import Needs
from tasks_app.pool.flow_control import circuit_breakers
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.runtime.hints import HINTS

AT_ONCE = 10_000
HINTS_S = 30.0
"""For the first hints, which import Celery beside the calls: they belong to the warm ones."""
URL = DATABASE.replace("postgresql:", "postgresql+psycopg:")


def install() -> None:
    """Migrate."""
    os.environ["TASKS_APP_DATABASE_URL"] = URL
    from tasks_app.cli.group import group  # it reads the environment

    with redirect_stdout(sys.stderr):
        group(["migrate"], standalone_mode=False)


KEYS: dict[str, Callable[[int], TaskOptions]] = {
    "none": lambda _i: {},
    "unique": lambda i: {"unique_key": f"order:{i}"},
    "limit": lambda i: {"limit_key": f"user:{i}"},
    "tenants": lambda i: {"limit_key": f"tenant:{i % 100}"},
    "order": lambda i: {"order_key": f"account:{i}"},
}
"""What a task may be created with, beside its payload."""
LIMITS = (("user:*", 2), ("tenant:*", 1_000))


def enqueue(n: int, handler: str, first: int = 0, keys: str = "none") -> None:
    """Create tasks, as fast as it goes."""
    engine, options = create_engine(URL), KEYS[keys]
    if "limit_key" in options(0):
        with engine.begin() as connection:
            for target, most in LIMITS:
                set_limit(connection, Limit(GateKind.KEY, target, most))
    for start in range(first, first + n, AT_ONCE):
        indices = range(start, min(first + n, start + AT_ONCE))
        with engine.begin() as connection:  # a Connection sends no hints: the scan must find them
            tasks = [NewTask(handler, {"i": i}, options(i)) for i in indices]
            create_tasks(connection, tasks)


def chain(n: int, of: int) -> float:
    """Return the seconds that it takes to create flows of so many steps in a row."""
    engine, started = create_engine(URL), now()
    for first in range(0, n, of):
        flow = Flow("chain")
        before: Needs = ()
        for i in range(first, first + of):
            before = flow.step(str(i), "noop", {"i": i}, needs=before)
        with engine.begin() as connection:
            create_flow(connection, flow)
    return (now() - started) / 1e9


def stand_still(n: int, how: str) -> None:
    """Let a queue, a limit or a breaker stop what is created then."""
    engine, options = create_engine(URL), TaskOptions()
    with engine.begin() as connection:
        if how == "paused":
            pause_queue(connection, "default")
        elif how == "closed":
            other = datetime.now(UTC) + timedelta(hours=12)
            change_queue(connection, "default", windows=[f"{other:%H}:00-{other:%H}:01"])
        elif how == "limited":
            set_limit(connection, Limit(GateKind.KEY, "tenant:*", 0))
            options = TaskOptions(limit_key="tenant:1")
        elif how == "broken":
            circuit_breakers.synchronise(connection, {Breaker("bank"): ["noop"]}, ["noop"])
            circuit_breakers.override(connection, "bank", BreakerMode.OPEN)
    for _ in range(0, n, AT_ONCE):
        with engine.begin() as connection:
            create_tasks(connection, [NewTask("noop", {"i": 0}, options)] * AT_ONCE)


def bulk(n: int, size: int | None = None) -> float:
    """Return the seconds of ``create_tasks`` for n tasks on a Session, ``size`` a transaction."""
    engine = create_engine(URL)

    def create(number: int) -> None:
        with Session(engine) as session, session.begin():
            create_tasks(session, [NewTask("noop", {"i": i}) for i in range(number)])

    return _in_groups(n, size or n, create)


def bulk_on_psycopg(n: int, size: int) -> float:
    """Return the same on a connection of psycopg in autocommit, where the call is a transaction."""
    with _psycopg() as connection:

        def create(number: int) -> None:
            create_tasks(connection, [NewTask("noop", {"i": i}) for i in range(number)])

        return _in_groups(n, size, create)


def _in_groups(n: int, size: int, create: Callable[[int], object]) -> float:
    create(WARM)
    HINTS.flush(HINTS_S)
    return _timed(lambda: [create(min(size, n - start)) for start in range(0, n, size)])


def single_on_a_session(n: int) -> Any:
    """Return the seconds that n calls on a Session take, each with a begin and a commit."""
    engine = create_engine(URL)

    def create(i: int) -> None:
        with Session(engine) as session, session.begin():
            create_task(session, "noop", {"i": i})

    return _one_by_one(n, create)


def single(n: int) -> Any:
    """Return the seconds that n calls on a connection of psycopg take, each a transaction."""
    with _psycopg() as connection:
        return _one_by_one(n, lambda i: create_task(connection, "noop", {"i": i}))


def single_in_transactions(n: int) -> Any:
    """Return the same with BEGIN and COMMIT around each, as around a producer's other writes."""
    with _psycopg() as connection:

        def create(i: int) -> None:
            with connection.transaction():
                create_task(connection, "noop", {"i": i})

        return _one_by_one(n, create)


def _psycopg() -> Any:
    return psycopg.connect(DATABASE, autocommit=True)


def _one_by_one(n: int, create: Callable[[int], object]) -> Any:
    try:
        create(0)
    except (AttributeError, TypeError) as error:
        return {"missing": f"create_task takes no connection of psycopg yet: {error}"}
    for i in range(1, WARM):
        create(i)
    HINTS.flush(HINTS_S)
    return _timed(lambda: [create(i) for i in range(n)])


def against_bare(n: int) -> dict[str, Any]:
    """Return what n tasks cost, and what n INSERTs of the same row, in random turns."""
    os.environ["TASKS_APP_BROKER_URL"] = ""  # a producer without a broker
    engine = create_engine(URL)
    table = Table("task_pending", MetaData(), autoload_with=engine)
    bare = insert(table).returning(table.c.id)
    driver = "INSERT INTO task_pending (name, queue, priority, payload) VALUES (%s, %s, %s, %s)"
    row = {"name": "noop", "queue": "default", "priority": 5}

    def ours(i: int) -> None:
        with Session(engine) as session, session.begin():
            create_task(session, "noop", {"i": i})

    def core(i: int) -> None:
        with Session(engine) as session, session.begin():
            session.execute(bare, {**row, "payload": {"i": i}}).scalar_one()

    def text(i: int) -> None:
        with Session(engine) as session, session.begin():
            values = ("noop", "default", 5, f'{{"i": {i}}}')
            session.connection().exec_driver_sql(driver + " RETURNING id", values).scalar_one()

    ways = (ours, core, text)
    spans: dict[Callable[[int], None], list[tuple[int, int]]] = {way: [] for way in ways}
    for i in range(n + WARM):
        for way in random.sample(ways, k=len(ways)):
            began, worked = now(), time.thread_time_ns()
            way(i)
            spans[way].append((now() - began, time.thread_time_ns() - worked))
    found = {way: median(span for span, _ in spans[way][WARM:]) / 1e3 for way in ways}
    cpu = {way: median(span for _, span in spans[way][WARM:]) for way in ways}
    return {
        "ours_us": found[ours],
        "bare_us": found[core],
        "driver_us": found[text],
        "ratio": found[ours] / found[core],
        "cpu_ratio": cpu[ours] / cpu[core],
        "ratio_driver": found[ours] / found[text],
        "created": (n + WARM) * len(ways),
    }


def latency(n: int, gap_s: float, warm: list[int]) -> Instants:
    """Create one by one on a Session; the hint starts them."""
    engine, begun, committed = create_engine(URL), [], []

    def create(i: int) -> None:
        with Session(engine) as session, session.begin():
            create_task(session, "noop", {"i": i})

    for i in warm:
        create(i)
        time.sleep(gap_s)
    # as the first listener: the hint is sent after the commit has returned
    event.listen(Session, "after_commit", lambda _: committed.append(now()), insert=True)
    for i in spread(n, gap_s):
        begun.append(now())
        create(i)
    return begun, committed


def flood(n: int, size: int, gap_s: float) -> list[int]:
    """Create tasks of 20 ms on a Session, ``size`` a transaction; return when each of these began.

    Hints start them.
    """
    engine, begun = create_engine(URL), []
    for group in spread(-(-n // size), gap_s):
        some = range(group * size, min(n, (group + 1) * size))
        begun.append(now())
        with Session(engine) as session, session.begin():
            create_tasks(session, [NewTask("sleep_20", {"i": i}) for i in some])
    return begun


def delayed(n: int, lead_s: float, span_s: float) -> list[int]:
    """Create tasks due at random instants of a span; return these, in the monotonic clock."""
    engine = create_engine(URL)
    begin, offset = time.time() + lead_s, time.time_ns() - now()
    dues = [begin + random.uniform(0, span_s) for _ in range(n)]  # noqa: S311  no secret
    for start in range(0, n, 100):
        some = range(start, min(n, start + 100))
        with Session(engine) as session, session.begin():
            create_tasks(session, [_due(i, dues[i]) for i in some])
    return [int(due * 1e9) - offset for due in dues]


def _due(i: int, due: float) -> NewTask:
    return NewTask("noop", {"i": i}, {"run_at": datetime.fromtimestamp(due, UTC)})


def _timed(work: Callable[[], object]) -> float:
    started = now()
    work()
    return (now() - started) / 1e9


if __name__ == "__main__":
    many = (enqueue, stand_still, bulk, bulk_on_psycopg)
    one_by_one = (single, single_in_transactions, single_on_a_session, against_bare)
    answer(install, *many, *one_by_one, chain, delayed, flood, latency)
