"""Operators who change how a task waits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tasks_app.domain.operations import Amendment, BulkAction
from tasks_app.pool.tasks.amend import amend
from tests.pool.stateful import oracle
from tests.pool.stateful.oracle_of_people import Pick, Picks, one
from tests.pool.stateful.world import GIVE_UP, Expected, View, seats, ways_out


class Waiting(Picks):
    """A rule for each verb."""

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
