"""Whoever claims ordered tasks, holds them, wakes them, and lets them go on."""

from __future__ import annotations

from uuid import uuid4

from hypothesis import strategies as st
from hypothesis.stateful import rule
from sqlalchemy import Connection

from tasks_app.domain.flow_control.limits import Gate, GateKind
from tasks_app.pool.flow_control import order_and_limits, waiting_list
from tasks_app.pool.flow_control.capacity import capacities_of, lock_buckets
from tasks_app.pool.flow_control.order_and_limits import unblock
from tasks_app.runtime.flow_control.admission import let_pass
from tests.pool.stateful import oracle as ordered
from tests.pool.stateful.oracle import Worker
from tests.pool.stateful.oracle_of_people import Pick, one, some
from tests.pool.stateful.rules_of_workers import LEASE, Workers, claimer, workers
from tests.pool.stateful.world import seats

KEYS = st.sampled_from(("o", "o", "p"))


class Admissions(Workers):
    """They lock what they decide about until their transaction ends."""

    @rule(seat=seats, picks=some, worker=workers)
    def claim_ordered(self, seat: int, picks: list[Pick], worker: Worker) -> None:
        self.claim_ordered_ids(seat, self.ids_of(picks), worker)

    def claim_ordered_ids(self, seat: int, ids: list[int], worker: Worker) -> None:
        now, token = self.now, uuid4()

        def call(connection: Connection) -> list:
            found = order_and_limits.waiting(connection, ids, tuple(worker.handlers), now=now)
            return let_pass(connection, found, claimer(worker), token, now=now)[0]

        self._claim(
            seat,
            call,
            lambda view, _: ordered.claim_of_oracle_of_gates(view, ids, worker, token, LEASE, now),
        )

    @rule(seat=seats, key=KEYS)
    def wake(self, seat: int, key: str) -> None:
        now, gate = self.now, Gate(GateKind.ORDER, key)

        def call(connection: Connection) -> list[int]:
            limits = order_and_limits.read_limits(connection)
            rooms = capacities_of(connection, lock_buckets(connection, [gate]), limits, now=now)
            woken = waiting_list.wake_tasks(connection, rooms, limits, now=now)
            return [task_id for _, task_id in woken]

        self.do(seat, call, lambda view, _: ordered.wake(view, key, now))

    @rule(seat=seats, pick=one)
    def unblock(self, seat: int, pick: Pick) -> None:
        self.unblock_of(seat, self.id_of(pick, over=True))

    def unblock_of(self, seat: int, task_id: int) -> None:
        now = self.now
        self.do(
            seat, lambda c: unblock(c, task_id, now=now), lambda v, _: ordered.unblock(v, task_id)
        )
