"""Flows and those who meet at a step: each acts in turn, and nothing runs before its needs."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.errors import TasksError
from tasks_app.domain.flows import CreatedFlow, Flow, Need, ended, failed
from tasks_app.domain.operations import Amendment, BulkAction
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.dispatch.set_aside import sweep_all
from tasks_app.pool.flow_rerun import lock_flow, rerun
from tasks_app.pool.flows import add_needs, step_of
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.leases import release, rescue_claims
from tasks_app.pool.runs.settle import settle_group, settle_one
from tasks_app.pool.tasks.amend import amend
from tasks_app.pool.tasks.cancel import cancel, cancel_these
from tasks_app.pool.tasks.requeue import requeue
from tasks_app.runtime.api.flows import extend_flow
from tests.factory import LEASE, claimed_task, claimer, ending, succeed
from tests.pool.interleave import blocked, two
from tests.pool.test_flows import CAUSE, act, flow, starts, words
from tests.pool.test_task_groups import (
    IN_THE_WAY,
    by_group,
    by_one,
    with_effects,
)


def prepared(engine: Engine, *verbs: str) -> tuple[CreatedFlow, dict[str, Any]]:
    with engine.begin() as connection:
        made = flow(connection, a=(), b=(), d=(ended("a"), ended("b")), e="d")
        for verb in verbs:
            act(connection, made, verb)
        waiting = [step for step in "ab" if words(connection, made)[step] == "due"]
        tasks = {step: claimed_task(connection, made.task_ids[step]) for step in waiting}
    return made, tasks


def ends(step: str, by: Any = by_one) -> Callable[..., Any]:
    return lambda connection, made, tasks: by(connection, tasks[step])


def acts(verb: str) -> Callable[..., Any]:
    return lambda connection, made, tasks: act(connection, made, verb)


def cancels(connection: Connection, made: CreatedFlow, tasks: dict[str, Any]) -> None:
    assert cancel_these(connection, [made.task_ids["a"]]).cancelled == 1


MEETINGS: dict[str, tuple[list[str], Any, Any, dict[str, str]]] = {
    **{
        f"the last two, {one.__name__} and {other.__name__}": (
            [], ends("a", one), ends("b", other), {"commit": "due", "rollback": "waits 1"})
        for one in (by_group, by_one, with_effects)
        for other in (by_one, with_effects)
    },
    "a requeue of a failure and an end": (
        ["fails:a"], acts("requeue:a"), ends("b"), {"commit": "waits 1", "rollback": "due"}),
    "an end and a requeue of a failure": (
        ["fails:a"], ends("b"), acts("requeue:a"), {"commit": "waits 1", "rollback": "waits 2"}),
    "a requeue of a success and an end": (
        ["ends:a"], acts("requeue:a"), ends("b"), {"commit": "waits 1", "rollback": "due"}),
    "a cancellation and an end": (
        ["retry:a"], cancels, ends("b"), {"commit": "due", "rollback": "waits 1"}),
    "an end and a cancellation": (
        ["retry:a"], ends("b"), cancels, {"commit": "due", "rollback": "waits 1"}),
    "a hold and the last end": (
        ["ends:a"], acts("hold"), ends("b"), {"commit": "held", "rollback": "due"}),
    "the last end and a hold": (
        ["ends:a"], ends("b"), acts("hold"), {"commit": "held", "rollback": "held, waits 1"}),
    "a release and the last end": (
        ["ends:a", "hold"], acts("release"), ends("b"), {"commit": "due", "rollback": "held"}),
    "the last end and a release": (
        ["ends:a", "hold"], ends("b"), acts("release"), {"commit": "due", "rollback": "waits 1"}),
    "another date and the last end": (
        ["ends:a"], acts("later"), ends("b"), {"commit": "later", "rollback": "due"}),
    "the last end and another date": (
        ["ends:a"], ends("b"), acts("later"), {"commit": "later", "rollback": "waits 1"}),
    "a claim and a requeue": (
        ["ends:a", "ends:b"], acts("claim"), acts("requeue:a"),
        {"commit": "runs", "rollback": "waits 1"}),
}  # fmt: skip
"""What was before, what the first does, what the second does, and how d is then."""


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("case", MEETINGS.values(), ids=MEETINGS)
def test_two_that_meet_at_a_step_act_in_turn(engine: Engine, case, end: str) -> None:
    before, first, second, expected = case
    made, tasks = prepared(engine, *before)
    with two(engine) as (a, b):
        first(a, made, tasks)
        waiting = blocked(engine, b, a, lambda connection: second(connection, made, tasks))
        getattr(a, end)()
        waiting.result()
        b.commit()
    with engine.connect() as connection:
        assert words(connection, made)["d"] == expected[end]
        assert consistent(connection)


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("by", [by_one, with_effects])
@pytest.mark.parametrize("ends_first", [True, False])
def test_no_end_is_missed_by_a_run_that_goes_back_to_wait(
    engine: Engine, by: Any, *, ends_first: bool, end: str
) -> None:
    made, tasks = prepared(engine)
    with two(engine) as (a, b):
        add_needs(a, tasks["b"].task_id, [Need("a")])
        a.commit()
        first, second = waits_for_needs, ends("a", by)
        if ends_first:
            first, second = second, first
        first(a, made, tasks)
        waiting = blocked(engine, b, a, lambda connection: second(connection, made, tasks))
        getattr(a, end)()
        waiting.result()
        b.commit()
    with engine.connect() as connection:
        rolled_back = "waits 1" if ends_first else "runs"
        assert words(connection, made)["b"] == ("due" if end == "commit" else rolled_back)
        assert consistent(connection)


def waits_for_needs(connection: Connection, made: CreatedFlow, tasks: dict[str, Any]) -> None:
    assert settle_one(connection, back_to_wait(tasks["b"])) is State.PENDING


def back_to_wait(task: Any) -> Any:
    return ending(task, Event.SNOOZE, awaits_needs=True, wait=timedelta(0), cause=CAUSE)


@pytest.mark.parametrize("first", [by_group, by_one, with_effects])
def test_a_settle_of_many_leaves_a_run_that_waits_while_its_flow_is_busy(
    engine: Engine, first
) -> None:
    made, tasks = prepared(engine)
    with two(engine) as (a, b):
        add_needs(a, tasks["b"].task_id, [Need("a")])
        a.commit()
        first(a, tasks["a"])
        assert settle_group(b, [back_to_wait(tasks["b"])]) == {}
        b.commit()
        a.commit()
        assert settle_group(b, [back_to_wait(tasks["b"])]) == {tasks["b"].task_id: State.PENDING}
        b.commit()
    with engine.connect() as connection:
        assert words(connection, made)["b"] == "due"


def test_a_settle_of_many_leaves_an_end_while_a_run_goes_back_to_wait(engine: Engine) -> None:
    made, tasks = prepared(engine)
    with two(engine) as (a, b):
        add_needs(a, tasks["b"].task_id, [Need("a")])
        a.commit()
        assert settle_group(a, [back_to_wait(tasks["b"])])
        assert settle_group(b, [ending(tasks["a"])]) == {}
        b.commit()
        a.commit()
        by_group(b, tasks["a"])
        b.commit()
    with engine.connect() as connection:
        assert words(connection, made)["b"] == "due"


def extends(connection: Connection, made: CreatedFlow, tasks: dict[str, Any]) -> None:
    more = Flow("more")
    more.step("x", "t", needs=("a", "b"))
    extend_flow(connection, made.id, more)


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("by", [by_one, with_effects])
@pytest.mark.parametrize("ends_first", [True, False])
def test_steps_that_are_added_count_each_end_once(
    engine: Engine, by: Any, *, ends_first: bool, end: str
) -> None:
    made, tasks = prepared(engine, "ends:a")
    first, second = (ends("b", by), extends) if ends_first else (extends, ends("b", by))
    with two(engine) as (a, b):
        first(a, made, tasks)
        waiting = blocked(engine, b, a, lambda connection: second(connection, made, tasks))
        getattr(a, end)()
        waiting.result()
        b.commit()
    with engine.connect() as connection:
        expected = "due" if end == "commit" else "waits 1" if ends_first else None
        assert words(connection, made).get("x") == expected
        assert consistent(connection)


@pytest.mark.parametrize("first", [by_group, by_one, with_effects])
def test_a_settle_of_many_leaves_a_step_whose_flow_is_busy(engine: Engine, first) -> None:
    made, tasks = prepared(engine)
    with two(engine) as (a, b):
        first(a, tasks["a"])
        assert settle_group(b, [ending(tasks["b"])]) == {}
        b.commit()
        a.commit()
        by_group(b, tasks["b"])
        b.commit()
    with engine.connect() as connection:
        assert words(connection, made)["d"] == "due"


def test_nobody_sees_an_end_without_what_it_releases(engine: Engine) -> None:
    made, tasks = prepared(engine, "ends:a")
    with two(engine) as (a, b):
        with_effects(a, tasks["b"])
        assert words(a, made)["d"] == "due"
        assert words(b, made) == {"a": "success", "b": "runs", "d": "waits 1", "e": "waits 1"}
        assert not starts(b, made.task_ids["d"])


# -- what holds whatever is done
RECOUNTED = text("""
    SELECT s.flow_id, s.step, p.state, p.waits_for, p.due_at <= clock_timestamp() AS due, (
        SELECT count(*) FROM task_flow_need n
        JOIN task_flow_step e ON e.flow_id = n.flow_id AND e.step = n.needs
        WHERE n.flow_id = s.flow_id AND n.step = s.step
          AND (e.ended IS NULL OR e.ended = 'failure' AND n.after = 'success')) AS open
    FROM task_flow_step s JOIN task_pending p ON p.id = s.task_id
    JOIN task_group g ON g.id = s.flow_id
    WHERE s.ended IS NULL AND g.outcome IS DISTINCT FROM 'SUCCEEDED'
    ORDER BY s.flow_id, s.step""")


def consistent(connection: Connection) -> bool:
    """Whether each step that waits counts the needs of it that are open."""
    rows = connection.execute(RECOUNTED).all()
    wrong = [r for r in rows if r.state == "PENDING" and abs(r.waits_for or 0) != r.open]
    wrong += [r for r in rows if r.waits_for and (r.due or r.state != "PENDING")]
    assert wrong == []
    return True


FLOWS, THREADS, ACTS = 6, 5, 80
OPEN_NEEDS = text("""
    SELECT s.flow_id, s.step, n.needs, n.after, e.ended
    FROM task_flow_step s JOIN task_group g ON g.id = s.flow_id
    JOIN task_flow_need n ON n.flow_id = s.flow_id AND n.step = s.step
    JOIN task_flow_step e ON e.flow_id = n.flow_id AND e.step = n.needs
    WHERE s.task_id = ANY(:ids) AND g.outcome IS DISTINCT FROM 'SUCCEEDED'
      AND (e.ended IS NULL OR e.ended = 'failure' AND n.after = 'success')""")
BROKEN = text("SELECT task_id FROM task_flow_step WHERE ended = 'failure' ORDER BY task_id")
COUNTS = text("""
    SELECT g.id, g.succeeded, g.failed, g.outcome,
        count(*) FILTER (WHERE s.ended = 'success') AS good,
        count(*) FILTER (WHERE s.ended = 'failure' OR c.state = 'CANCELLED') AS bad,
        count(*) FILTER (WHERE s.ended = 'unneeded' AND c.state = 'SKIPPED') AS unneeded,
        count(*) FILTER (WHERE s.ended IS NULL) AS open
    FROM task_group g JOIN task_flow_step s ON s.flow_id = g.id
    LEFT JOIN task_completed c ON c.id = s.task_id GROUP BY g.id""")


def random_flow(connection: Connection, dice: random.Random) -> list[int]:
    needs: dict[str, Any] = {}
    for step in "abcdefg":
        some = dice.sample(sorted(needs), min(len(needs), dice.choice((0, 1, 1, 2, 3))))
        needs[step] = tuple(dice.choice((str, str, str, failed, ended))(one) for one in some)
    made = flow(connection, on_failure=dice.choice(("wait", "wait", "cancel")), **needs)
    return list(made.task_ids.values())


class Actor:
    """One thread: a worker and an operator in turn, and now and then one who rolls back."""

    def __init__(self, engine: Engine, ids: list[int], seed: int) -> None:
        self._engine, self._ids, self._dice = engine, ids, random.Random(seed)
        self.ran = self.refused = 0

    def act(self) -> None:
        for _ in range(ACTS):
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
        some = sorted(self._dice.sample(self._ids, self._dice.choice((1, 5, 20))))
        match self._dice.randrange(13):
            case 0:
                cancel(connection, some[0])
            case 1:
                cancel_these(connection, some[:2])
            case 2 | 3:
                requeue(connection, some[0])
            case 4:
                amend(connection, BulkAction.HOLD, some[:1])
            case 5:
                amend(connection, BulkAction.RELEASE, some[:1])
            case 6:
                amend(
                    connection,
                    self._dice.choice((BulkAction.RUN_NOW, BulkAction.MOVE)),
                    some[:1],
                    Amendment(to_queue="slow"),
                )
            case 7:
                sweep_all(connection, 10)
            case 8:
                self._rerun(connection, some[0])
            case _:
                self._run(connection, some)

    def _rerun(self, connection: Connection, task_id: int) -> None:
        of = step_of(connection, task_id)
        found = of and lock_flow(connection, of.flow.id)
        with suppress(TasksError):
            rerun(connection, found, of.step.name)

    def _run(self, connection: Connection, some: list[int]) -> None:
        """Claims and ends are one transaction here, so that nobody has to find open runs again."""
        tasks = claimed(connection, some)
        self.ran += len(tasks)
        for task in tasks[:1]:
            match self._dice.randrange(4):
                case 0:
                    assert succeed(connection, ending(task))
                case 1:
                    rescue_claims(connection, [task.fence], lease=LEASE, max_crashes=1)
                case 2:
                    settle_one(connection, ending(task, Event.FAIL, cause=CAUSE))
                case _:
                    settle_one(connection, ending(task))
        events = (Event.SUCCEED, Event.SUCCEED, Event.FAIL, Event.SKIP, Event.RETRY)
        left = [
            ending(task, self._dice.choice(events), cause=CAUSE, wait=timedelta(0))
            for task in tasks[1:]
        ]
        settle_group(connection, left)
        release(connection, [task.fence for task in tasks])


def claimed(connection: Connection, ids: list[int]) -> list[Any]:
    """Claim those that are due; none of them has an open need.

    A step that is requeued once its flow has succeeded runs alone.
    """
    tasks = claim(connection, ids, claimer(), uuid4())
    assert connection.execute(OPEN_NEEDS, {"ids": [task.task_id for task in tasks]}).all() == []
    return tasks


def drain(engine: Engine, ids: list[int]) -> None:
    """Let all that can run succeed."""
    with engine.begin() as connection:
        amend(connection, BulkAction.RELEASE, ids)
    while True:
        with engine.begin() as connection:
            gone = sweep_all(connection, 1000)
            tasks = claimed(connection, ids)
            assert len(settle_group(connection, [ending(task) for task in tasks])) == len(tasks)
        if not tasks and not gone:
            break
    with engine.connect() as connection:
        assert consistent(connection)
        rows = connection.execute(RECOUNTED).all()
        assert [row for row in rows if row.open == 0 or row.due] == []
        for g in connection.execute(COUNTS):
            if g.outcome != State.SUCCEEDED:  # it counts no more
                assert (g.succeeded, g.failed) == (g.good + g.unneeded, g.bad)
            assert (g.open == 0) == (g.outcome is not None)


@pytest.mark.test_all
@pytest.mark.parametrize("seed", range(4))
def test_no_step_runs_before_its_needs_and_none_is_forgotten(engine: Engine, seed: int) -> None:
    dice = random.Random(seed)
    ids: list[int] = []
    for _ in range(FLOWS):
        with engine.begin() as connection:
            ids += random_flow(connection, dice)
    actors = [Actor(engine, ids, 100 * seed + n) for n in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(actor.act) for actor in actors]:
            done.result()
    with engine.connect() as connection:
        assert consistent(connection)
    drain(engine, ids)
    while True:  # what failed is mended
        with engine.begin() as connection:
            broken = connection.execute(BROKEN).scalars().all()
            for task_id in broken:
                requeue(connection, task_id)
        if not broken:
            break
        drain(engine, ids)
    assert sum(actor.ran for actor in actors) > len(ids) // 2
    assert sum(actor.refused for actor in actors) < ACTS
