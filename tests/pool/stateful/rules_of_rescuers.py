"""Rescuers and reapers: they take back what vanished, a while later."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule
from sqlalchemy import Connection, text

from tasks_app.domain.handlers.settlement import ABORTED, CONNECTION_LOST, PROCESS_KILLED, VANISHED
from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import State
from tasks_app.pool.runs.claim import claims_of
from tasks_app.pool.runs.leases import rescue_claims, rescue_expired
from tests.pool.stateful import oracle as runs
from tests.pool.stateful.oracle_of_people import Pick, Picks, some
from tests.pool.stateful.rules_of_workers import LEASE, workers
from tests.pool.stateful.world import Expected, Row, View, seats

MOST_CRASHES = 3
SENTENCES = {
    VANISHED: "worker vanished: The task was on board when its worker vanished",
    PROCESS_KILLED: "process killed: "
    "Its process was killed at the hard limit of another task in it",
    CONNECTION_LOST: "connection lost: "
    "The database, which is up, ended the connection on which the task ran",
    ABORTED: "broken off: No limit, stop or operator broke off its run",
}
chances = st.sampled_from((0.1, 0.5, 0.9))
DUE = text("SELECT id, due_at FROM task_pending WHERE id = ANY(:ids)")


class Rescuers(Picks):
    """When a rescued task is due again is a matter of chance, within bounds."""

    @rule(seat=seats, most=st.sampled_from((1, 2, 500)), chance=chances)
    def rescue_expired(self, seat: int, most: int, chance: float) -> None:
        now = self.now

        def which(view: View) -> list[Row]:
            rows = [r for r in view.rows() if r.lease_until and r.lease_until < now]
            return [row for row in rows if view.free(row.id)][:most]

        self._rescue(
            seat,
            lambda c: rescue_expired(c, lease=LEASE, max_crashes=MOST_CRASHES, most=most, now=now),
            which,
            chance,
            VANISHED,
        )

    @rule(seat=seats, picks=some, chance=chances, kind=st.sampled_from(tuple(SENTENCES)))
    def rescue_claims(self, seat: int, picks: list[Pick], chance: float, kind: str) -> None:
        self._rescue_fences(seat, [task.fence for task in self.runs_of(picks)], chance, kind)

    @rule(seat=seats, worker=workers, chance=chances)
    def reap(self, seat: int, worker: Any, chance: float) -> None:
        """A dead child's claims, as they are read; another reaper may be ahead."""
        fences = [task.fence for task in claims_of(self.connections[seat], worker.owner)]
        self._rescue_fences(seat, fences, chance, VANISHED)

    def _rescue_fences(self, seat: int, fences: list[Fence], chance: float, kind: str) -> None:
        now = self.now

        def which(view: View) -> list[Row]:
            rows = [(view.pending(fence.task_id), fence) for fence in fences]
            return [row for row, f in rows if row and runs.holds(row, f) and view.free(row.id)]

        self._rescue(
            seat,
            lambda c: rescue_claims(
                c, fences, lease=LEASE, max_crashes=MOST_CRASHES, kind=kind, now=now
            ),
            which,
            chance,
            kind,
        )

    def _rescue(self, seat: int, call: Any, which: Any, chance: float, kind: str) -> None:
        now, due = self.now, {}

        def rescue(connection: Connection) -> dict[int, State]:
            connection.execute(text("SELECT setseed(:chance)"), {"chance": chance})
            moved = call(connection)
            due.update(connection.execute(DUE, {"ids": list(moved)}).all())
            return moved

        def foresee(view: View, answer: Any) -> Expected:
            expected = Expected({})
            for row in which(view):
                back_at = due.get(row.id, now)
                after = runs.rescued(row, back_at, MOST_CRASHES, SENTENCES[kind])
                if after.state is State.PENDING:
                    assert timedelta(0) <= back_at - now <= runs.latest(row, LEASE)
                expected.changes[row.id], expected.answer[row.id] = after, after.state
                expected.notes["rescue", row.id, row.attempt] += 1
            return expected

        self.do(seat, rescue, foresee)
