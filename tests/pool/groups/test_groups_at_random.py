"""Members end in all ways at once, some of it rolled back: what is counted is what there is."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.creation import NewTask
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.leases import release, rescue_claims
from tasks_app.pool.runs.settle import settle_group, settle_one
from tasks_app.pool.tasks.cancel import cancel, cancel_these
from tasks_app.pool.tasks.requeue import requeue
from tasks_app.runtime.api.groups import create_group
from tests.factory import LEASE, claimer, ending, succeed

THREADS, STEPS = 6, 120
GROUPS, MEMBERS = 8, 15
CAUSE = Cause("E", "no")
THEN, ELSE = NewTask("then"), NewTask("else")
IN_THE_WAY = ("40P01", "55P03")
"""Deadlocks of those who cancel members of several groups, and long waits."""
COUNTED = text("""
    SELECT g.id, g.total, g.succeeded, g.failed, g.outcome, g.callback_id,
        count(*) FILTER (WHERE a.state IN ('SUCCEEDED', 'SKIPPED')) AS good,
        count(*) FILTER (WHERE a.state IN ('FAILED', 'CANCELLED', 'EXPIRED')) AS bad
    FROM task_group g LEFT JOIN (
        SELECT batch_id, state FROM task_pending UNION ALL
        SELECT batch_id, state FROM task_completed UNION ALL
        SELECT batch_id, state FROM task_error) AS a ON a.batch_id = g.id
    GROUP BY g.id ORDER BY g.id
""")
CALLED = text("SELECT id, headers FROM task_pending WHERE name IN ('then', 'else')")


class Actor:
    """One thread: a worker, an operator and a reaper in turn."""

    def __init__(self, engine: Engine, ids: list[int], seed: int, *, requeues: bool) -> None:
        self._engine, self._ids, self._dice = engine, ids, random.Random(seed)
        self._requeues = requeues
        self.refused = 0

    def act(self) -> None:
        for _ in range(STEPS):
            with self._engine.connect() as connection:
                connection.execute(text("SET LOCAL lock_timeout = '5s'"))
                try:
                    for _ in range(self._dice.choice((1, 1, 2))):
                        self._step(connection)
                except (DBAPIError, psycopg.Error) as error:
                    state = getattr(getattr(error, "orig", error), "sqlstate", None)
                    if state not in IN_THE_WAY:
                        raise
                    self.refused += 1
                    connection.rollback()
                    continue
                if self._dice.random() < 0.15:
                    connection.rollback()
                else:
                    connection.commit()

    def _step(self, connection: Connection) -> None:
        some = sorted(self._dice.sample(self._ids, self._dice.choice((1, 1, 5, 20))))
        match self._dice.randrange(10):
            case 0:
                cancel(connection, some[0])
            case 1:
                cancel_these(connection, some[:2])
            case 2 | 3 if self._requeues:
                requeue(connection, some[0])
            case _:
                self._run(connection, some)

    def _run(self, connection: Connection, some: list[int]) -> None:
        """Claims and ends are one transaction here, so that nobody has to find open runs again."""
        tasks = claim(connection, some, claimer("t"), uuid4())
        for task in tasks[:1]:
            match self._dice.randrange(5):
                case 0:
                    assert succeed(connection, ending(task))
                case 1:
                    rescue_claims(connection, [task.fence], lease=LEASE, max_crashes=1)
                case 2:
                    settle_one(connection, ending(task, Event.FAIL, cause=CAUSE))
                case _:
                    settle_group(connection, [ending(task)])
        left = [
            ending(task, event, cause=CAUSE, wait=timedelta(0))
            for task in tasks[1:]
            for event in self._dice.choices((Event.SUCCEED, Event.FAIL, Event.SKIP, Event.SNOOZE))
        ]
        settle_group(connection, left)
        release(connection, [task.fence for task in tasks])


@pytest.mark.test_all
@pytest.mark.parametrize("requeues", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_counted_is_what_there_is(engine: Engine, seed: int, requeues: bool) -> None:
    ids: list[int] = []
    for number in range(GROUPS):
        options = [{}, {}, {"enough": 10}, {"fail_fast": True}][number % 4]
        with engine.begin() as connection:
            members = [NewTask("t") for _ in range(MEMBERS)]
            made = create_group(connection, members, then=THEN, on_failure=ELSE, **options)
        ids += made.task_ids
    actors = [Actor(engine, ids, 100 * seed + n, requeues=requeues) for n in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(actor.act) for actor in actors]:
            done.result()
    agree(engine, exact=not requeues)

    while True:  # what is left ends well
        with engine.begin() as connection:
            tasks = claim(connection, ids, claimer("t"), uuid4())
            assert len(settle_group(connection, [ending(task) for task in tasks])) == len(tasks)
        if not tasks:
            break
    assert None not in agree(engine, exact=not requeues)
    assert sum(actor.refused for actor in actors) < STEPS


def agree(engine: Engine, *, exact: bool) -> list[str | None]:
    """Compare groups with their members; return the outcomes.

    Of a group that is over, whose members may not be requeued, the counts are final, too.
    """
    with engine.connect() as connection:
        groups = connection.execute(COUNTED).all()
        called = dict(connection.execute(CALLED).all())
    for group in groups:
        counted, there = (group.succeeded, group.failed), (group.good, group.bad)
        if group.outcome is None:
            assert counted == there
            assert group.callback_id not in called
        else:
            told = called.pop(group.callback_id)
            assert (told["group_id"], told["succeeded"], told["failed"]) == (group.id, *counted)
            assert sum(counted) <= group.total
            if exact and sum(counted) == group.total:
                assert counted == there
            elif exact:
                assert group.succeeded <= group.good
                assert group.failed <= group.bad
    assert not called, "a task that no group has called"
    return [group.outcome for group in groups]
