"""Operators and the scan, and how their transactions end."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from sqlalchemy import Connection

from tasks_app.domain.errors import UniqueKeyTakenError
from tasks_app.domain.operations import Amendment, BulkAction
from tasks_app.domain.tasks.states import Pool
from tasks_app.pool.dispatch.scan import find_due
from tasks_app.pool.dispatch.set_aside import park_tasks, sweep
from tasks_app.pool.flow_control.queue_settings import pause, resume
from tasks_app.pool.tasks.amend import amend, change_payload
from tasks_app.pool.tasks.cancel import cancel, cancel_many, cancel_these
from tasks_app.pool.tasks.requeue import Requeued, requeue
from tests.factory import unknown
from tests.pool.stateful import oracle
from tests.pool.stateful import oracle_of_people as people
from tests.pool.stateful.oracle_of_people import Pick, Picks, one, some
from tests.pool.stateful.world import GIVE_UP, Expected, View, seats, ways_out

LATE = unknown("late")


class Operators(Picks):
    """People, who leave their transactions open."""

    def __init__(self) -> None:
        super().__init__()
        self.requeued: set[int] = set()
        """For the rule that a task which is over moves for nobody else."""

    @rule(seat=seats, pick=one, way_out=ways_out)
    def cancel(self, seat: int, pick: Pick, way_out: str) -> None:
        self.cancel_task(seat, self.id_of(pick), way_out)

    @rule(seat=seats, pick=one, way_out=ways_out)
    def cancel_what_runs(self, seat: int, pick: Pick, way_out: str) -> None:
        """Also if its claim has not committed yet."""
        self.cancel_task(seat, self.run_of(pick).task_id, way_out)

    def cancel_task(self, seat: int, task_id: int, way_out: str) -> None:
        now = self.now
        self.do(
            seat,
            lambda c: cancel(c, task_id, now=now),
            lambda view, _: people.cancel(view, task_id, now),
            way_out,
        )

    @rule(seat=seats, by=st.sampled_from((("b", None), (None, "order:1"), ("a", "order:1"))))
    def cancel_many(self, seat: int, by: tuple[str | None, str | None]) -> None:
        now, (name, biz_key) = self.now, by
        self.do(
            seat,
            lambda c: cancel_many(c, name=name, biz_key=biz_key, now=now),
            lambda view, _: people.cancel_many(view, name, biz_key, now),
        )

    @rule(seat=seats, picks=some)
    def cancel_these(self, seat: int, picks: list[Pick]) -> None:
        now, ids = self.now, self.ids_of(picks)
        self.do(
            seat,
            lambda c: cancel_these(c, ids, now=now),
            lambda view, _: people.cancel_these(view, ids, now),
        )

    @rule(seat=seats, pick=one, over=st.booleans(), number=st.integers(0, 3), way_out=ways_out)
    def edit(self, seat: int, pick: Pick, number: int, way_out: str, *, over: bool) -> None:
        task_id, payload = self.id_of(pick, over=over), {"edited": number}
        pool = Pool.ERROR if over else Pool.PENDING
        self.do(
            seat,
            lambda c: change_payload(c, pool, task_id, json.dumps(payload)),
            lambda view, _: people.edit(view, pool, task_id, payload),
            way_out,
        )

    @rule(seat=seats, pick=one, way_out=ways_out)
    def requeue(self, seat: int, pick: Pick, way_out: str) -> None:
        now, task_id = self.now, self.id_of(pick, over=True)

        def call(connection: Connection) -> Any:
            try:
                return requeue(connection, task_id, now=now)
            except UniqueKeyTakenError as taken:
                return int(str(taken).partition("by task ")[2].partition(".")[0])

        mine = self.world.open.get(seat)
        if mine and task_id in mine.changes:
            return  # nobody ends a run and requeues it in one transaction
        answer = self.do(seat, call, lambda view, _: people.requeue(view, task_id, now), way_out)
        if answer is Requeued.REQUEUED:
            self.requeued.add(task_id)

    @rule(seat=seats, queue=st.sampled_from(("q2", "q2", "*")), way_out=ways_out)
    def pause(self, seat: int, queue: str, way_out: str) -> None:
        self.do(
            seat,
            lambda c: pause(c, queue, "a leak", now=self.now),
            lambda view, _: people.pause(view, queue, "a leak"),
            way_out,
        )

    @rule(seat=seats, queue=st.sampled_from(("q2", "*", "*")))
    def resume(self, seat: int, queue: str) -> None:
        queues = ("q2", "*") if queue == "*" else (queue,)
        self.do(seat, lambda c: set(resume(c, queue)), lambda view, _: people.resume(view, queues))

    @rule(seat=seats, picks=some, wait=st.sampled_from((2, 15)))
    def park(self, seat: int, picks: list[Pick], wait: int) -> None:
        now, span, ids = self.now, timedelta(seconds=wait), self.ids_of(picks)
        self.do(
            seat,
            lambda c: park_tasks(c, ids, LATE, span, now=now),
            lambda view, _: people.park(view, ids, LATE, span, now),
        )

    @rule(seat=seats, picks=some)
    def sweep(self, seat: int, picks: list[Pick]) -> None:
        self.sweep_ids(seat, self.ids_of(picks))

    def sweep_ids(self, seat: int, ids: list[int]) -> None:
        now = self.now
        self.do(
            seat, lambda c: sweep(c, ids, now=now), lambda view, _: people.sweep(view, ids, now)
        )

    @rule(seat=seats, most=st.sampled_from((1, 3, 500)))
    def scan(self, seat: int, most: int) -> None:
        now = self.now

        def foresee(view: View, _: Any) -> Expected:
            runs = [queue for queue in ("q1", "q2") if people.runs(view, queue)]
            found = {queue: people.due(view, queue, most, now) for queue in runs}
            return Expected({queue: ids for queue, ids in found.items() if ids})

        self.do(
            seat,
            lambda c: {d.queue: d.ids for d in find_due(c, {"q1": most, "q2": most}, now=now)},
            foresee,
        )

    @precondition(lambda self: self.world.open)
    @rule(data=st.data(), commits=st.booleans())
    def end_a_transaction(self, data: st.DataObject, *, commits: bool) -> None:
        seat = data.draw(st.sampled_from(sorted(self.world.open)), "seat")
        self.end(seat, commits=commits)


class Waiting(Picks):
    @rule(seat=seats, pick=one, way_out=ways_out)
    def hold(self, seat: int, pick: Pick, way_out: str) -> None:
        self.amend_task(seat, BulkAction.HOLD, self.id_of(pick), Amendment(), way_out)

    @rule(seat=seats, number=st.integers(0, 9), way_out=ways_out)
    def release(self, seat: int, number: int, way_out: str) -> None:
        """Mostly of what is held."""
        held = [row.id for row in self.world.view(seat).rows() if row.held_due_at]
        task_id = held[number % len(held)] if held else self.id_of(("any", number))
        self.amend_task(seat, BulkAction.RELEASE, task_id, Amendment(), way_out)

    @rule(seat=seats, pick=one, way_out=ways_out)
    def run_now(self, seat: int, pick: Pick, way_out: str) -> None:
        self.amend_task(seat, BulkAction.RUN_NOW, self.id_of(pick), Amendment(), way_out)

    @rule(seat=seats, pick=one, wait=st.sampled_from((0, 3, 90_000)), way_out=ways_out)
    def reschedule(self, seat: int, pick: Pick, wait: int, way_out: str) -> None:
        change = Amendment(at=self.now + timedelta(seconds=wait))
        self.amend_task(seat, BulkAction.RESCHEDULE, self.id_of(pick), change, way_out)

    @rule(seat=seats, pick=one, priority=st.sampled_from((0, 5, 9)), way_out=ways_out)
    def reprioritise(self, seat: int, pick: Pick, priority: int, way_out: str) -> None:
        change = Amendment(to_priority=priority)
        self.amend_task(seat, BulkAction.REPRIORITISE, self.id_of(pick), change, way_out)

    @rule(seat=seats, pick=one, queue=st.sampled_from(("q1", "q2")), way_out=ways_out)
    def move(self, seat: int, pick: Pick, queue: str, way_out: str) -> None:
        self.amend_task(seat, BulkAction.MOVE, self.id_of(pick), Amendment(to_queue=queue), way_out)

    @rule(seat=seats, pick=one, enabled=st.booleans(), way_out=ways_out)
    def enable(self, seat: int, pick: Pick, way_out: str, *, enabled: bool) -> None:
        action = BulkAction.ENABLE if enabled else BulkAction.DISABLE
        self.amend_task(seat, action, self.id_of(pick), Amendment(), way_out)

    def amend_task(
        self, seat: int, action: BulkAction, task_id: int, change: Amendment, way_out: str = GIVE_UP
    ) -> None:
        now = self.now

        def foresee(view: View, _: Any) -> Expected:
            return oracle.amend(view, action, task_id, change, now)

        foresee.__qualname__ = f"Waiting.{action}"  # the tally counts each verb
        self.do(seat, lambda c: amend(c, action, [task_id], change, now=now), foresee, way_out)
