"""Two connections, step by step: who waits for whom, and statements stopped half-way."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
from sqlalchemy import Connection, Engine, text
from sqlalchemy.event import listen, remove

from tasks_app import NewTask, TaskId, create_task, create_tasks
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.claim import claim_next
from tasks_app.pool.runs.settle import settle_group
from tests.factory import claimer, ending

PATIENCE_S = 15
_GATE = 4711
_BLOCKERS = text("SELECT pg_blocking_pids(:pid)")


def pid_of(connection: Connection) -> int:
    return connection.connection.driver_connection.info.backend_pid


@contextmanager
def two(engine: Engine) -> Iterator[tuple[Connection, Connection]]:
    """Two connections; what they did not commit is rolled back."""
    with engine.connect() as a, engine.connect() as b:
        yield a, b
        a.rollback()
        b.rollback()


class Blocked:
    """A call in another thread whose statement waits for what ``by`` holds."""

    def __init__(self, engine: Engine, waiter: Connection, by: Connection, call: Callable) -> None:
        self._threads = ThreadPoolExecutor(1)
        self._future: Future = self._threads.submit(call, waiter)
        self._await_lock(engine, pid_of(waiter), pid_of(by))

    def _await_lock(self, engine: Engine, waiter: int, holder: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        with engine.connect() as monitor:
            while holder not in monitor.execute(_BLOCKERS, {"pid": waiter}).scalar_one():
                monitor.rollback()
                assert not self._future.done(), f"it did not wait: {self._future.result()!r}"
                assert time.monotonic() < deadline, "it neither waits nor ends"

    def result(self) -> Any:
        """What the call returned, now that nothing is in its way."""
        try:
            return self._future.result(PATIENCE_S)
        finally:
            self._threads.shutdown(wait=False)


def blocked(
    engine: Engine, waiter: Connection, by: Connection, call: Callable[[Connection], Any]
) -> Blocked:
    """Start ``call(waiter)`` and return once it waits for a lock of ``by``."""
    return Blocked(engine, waiter, by, call)


@contextmanager
def gate(engine: Engine) -> Iterator[Callable[[Connection, Callable], Blocked]]:
    """Stop statements between their snapshot and their first row lock.

    Inside, ``stop(connection, call)`` runs a verb whose clock is a function of ours that waits
    before it tells the time: the rows were read by then, and not locked. Leaving opens the gate.
    """
    with engine.connect() as leader:
        leader.execute(text("CREATE SCHEMA IF NOT EXISTS gate"))
        leader.execute(
            text(f"""
            CREATE OR REPLACE FUNCTION gate.statement_timestamp() RETURNS timestamptz
            LANGUAGE plpgsql VOLATILE AS $$ BEGIN
                PERFORM pg_catalog.pg_advisory_xact_lock_shared({_GATE});
                RETURN pg_catalog.statement_timestamp();
            END $$""")
        )
        leader.commit()
        leader.execute(text(f"SELECT pg_advisory_xact_lock({_GATE})"))

        def stop(connection: Connection, call: Callable) -> Blocked:
            connection.execute(text("SET LOCAL search_path = gate, public, pg_catalog"))
            return Blocked(engine, connection, leader, call)

        yield stop
        leader.rollback()


@contextmanager
def between(connection: Connection, act: Callable[[], Any], *, before: str) -> Iterator[None]:
    """Act once, before the connection's next statement that has this text in it."""
    acts = [act]

    def look(*event: Any) -> None:
        if before in event[2] and acts:
            acts.pop()()

    listen(connection, "before_cursor_execute", look)
    yield
    remove(connection, "before_cursor_execute", look)
    assert not acts, f"no statement had {before!r} in it"


BATCH = 10
LOOK_EVERY_S = 0.02
_PENDING_TWICE = text("""
    SELECT biz_key FROM task_pending WHERE state = 'PENDING' GROUP BY biz_key HAVING count(*) > 1
""")
_THERE_TWICE = text("SELECT biz_key FROM task_pending GROUP BY biz_key HAVING count(*) > 1")


class Load(NamedTuple):
    """What each process does."""

    scope: str
    policy: str
    creates: int
    keys: int


class Seen(NamedTuple):
    """What all of them were told of what they committed, and what was seen meanwhile."""

    outcomes: Counter[str]
    errors: Counter[str]
    twice: int


def produce(url: str, seed: int, load: Load) -> tuple[Counter[str], Counter[str]]:
    """One process: single creates and batches, a tenth of them rolled back."""
    dice, outcomes, errors = random.Random(seed), Counter[str](), Counter[str]()
    with psycopg.connect(url) as connection:
        done = 0
        while done < load.creates:
            number = BATCH if dice.random() < 0.05 else 1
            wanted = [str(dice.randrange(load.keys)) for _ in range(number)]
            done += number
            try:
                ids = _created(connection, wanted, load)
            except Exception as error:  # the policy's own, or one that leaks
                errors[type(error).__name__] += 1
                connection.rollback()
                continue
            if dice.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()
                outcomes.update(str(i.outcome) for i in ids)
    return outcomes, errors


def _created(connection: psycopg.Connection, wanted: list[str], load: Load) -> list[TaskId]:
    rules: Any = {"unique_scope": load.scope, "on_conflict": load.policy}
    new = [NewTask("t", None, {"unique_key": k, "biz_key": k, **rules}) for k in wanted]
    if len(new) == 1:
        return [create_task(connection, "t", **new[0].options)]
    return create_tasks(connection, new)


def all_of(engine: Engine, processes: int, load: Load, *, working: bool) -> Seen:
    """Let them all produce at once; ``working`` claims and settles meanwhile."""
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    look = _PENDING_TWICE if load.scope == "queued" else _THERE_TWICE
    outcomes, errors, twice = Counter[str](), Counter[str](), 0
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        ends = [pool.submit(produce, url, seed, load) for seed in range(processes)]
        while wait(ends, LOOK_EVERY_S).not_done:
            with engine.begin() as connection:
                twice += len(connection.execute(look).all())
            if working:
                work(engine.begin)
        for end in ends:
            told, raised = end.result()
            outcomes += told
            errors += raised
    return Seen(outcomes, errors, twice)


def work(begin: Callable[[], Any]) -> None:
    with begin() as connection:
        tasks = claim_next(connection, ["default"], 20, claimer(), uuid4())
    with begin() as connection:
        settle_group(connection, [ending(task, Event.SUCCEED) for task in tasks])
