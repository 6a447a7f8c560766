"""Workers: they claim what they are sent, also twice, late, or forged, and end what they run."""

from __future__ import annotations

import json
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID, uuid4

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.limits import Gate, GateKind
from tasks_app.domain.handlers import settlement as decide
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Settlement
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.flow_control import order_and_limits, waiting_list
from tasks_app.pool.flow_control.capacity import capacities_of, lock_buckets
from tasks_app.pool.flow_control.order_and_limits import unblock
from tasks_app.pool.runs.claim import Claimer, claim, claim_next, claims_of, still_pending
from tasks_app.pool.runs.leases import release, release_token, renew
from tasks_app.pool.runs.settle import settle_group, settle_one, still_held
from tasks_app.pool.tasks.amend import replace_payload
from tasks_app.runtime.flow_control.admission import let_pass
from tests.factory import succeed
from tests.pool.stateful import oracle as claims
from tests.pool.stateful import oracle as ordered
from tests.pool.stateful import oracle as runs
from tests.pool.stateful.oracle import Ending, Worker
from tests.pool.stateful.oracle_of_people import Pick, one, some
from tests.pool.stateful.rules_of_producers import Producers, wishes
from tests.pool.stateful.world import AT_ONCE, GIVE_UP, LAST, Expected, Row, View, seats, ways_out

LEASE = timedelta(seconds=30)
NO = Cause("E", "no")
EFFECT = text("INSERT INTO stateful_effect VALUES (:task_id, :attempt)")
ALL = {"a": (3, False), "b": (1, False), "once": (3, True)}
EVERYBODY = Worker("w1", ALL)
workers = st.sampled_from(
    (EVERYBODY, EVERYBODY, Worker("w2", ALL), Worker("w3", {"a": (2, False)}))
)
words = st.sampled_from(
    ("succeed", "fail", "charge", "charge", "skip", "cancel", "snooze", "release")
)
waits = st.sampled_from((0, 5, 40)).map(lambda seconds: timedelta(seconds=seconds))


def claimer(worker: Worker) -> Claimer:
    most, once = zip(*worker.handlers.values(), strict=True)
    return Claimer(worker.owner, LEASE, tuple(worker.handlers), most, once)


def shown(task: ClaimedTask) -> tuple:
    """What of a claim's answer the model knows."""
    return (task.fence, task.name, task.payload, *task[6:11], task.cancel_requested)


def as_claimed(row: Row) -> tuple:
    fence = (row.id, row.attempt, row.token)
    counters = (row.failures, row.crashes, row.retry_level, row.max_attempts, row.at_most_once)
    payload = json.dumps(row.payload)
    return (fence, row.name, payload, *counters, row.cancel_requested_at is not None)


def settlement(task: ClaimedTask, word: str, wait: timedelta) -> Settlement:
    """What the runtime would decide."""
    match word:
        case "succeed":
            return decide.settle_return(task, '{"ok": 1}', 7)
        case "fail":
            return decide.settle_failure(task, NO)
        case "charge":
            return decide.charge_failure(task, None, NO, Random(0), after=wait)
    cause = NO if word in ("skip", "cancel") else None
    return Settlement(
        task.fence, Event(word), task.failures, task.retry_level, wait=wait, cause=cause
    )


class Workers(Producers):
    """Their claims commit, or did not; either may be written under later."""

    @initialize(wishes=st.lists(wishes, min_size=4, max_size=6))
    def a_day_begins(self, wishes: list[dict]) -> None:
        """With tasks that are due, so that little of the day is spent on waiting for them."""
        due: dict = {"delay": None, "expires": None, "wait_first": False}
        self.produce(AT_ONCE, [self.row(wish | due) for wish in wishes])
        self.claim_ids(AT_ONCE, self.ids[1:4], EVERYBODY)

    @rule(seat=seats, picks=some, worker=workers)
    def claim(self, seat: int, picks: list[Pick], worker: Worker) -> None:
        self.claim_ids(seat, self.ids_of(picks), worker)

    @rule(picks=some, worker=workers, pick=one)
    def claim_with_a_token_that_was_used(
        self, picks: list[Pick], worker: Worker, pick: Pick
    ) -> None:
        """As after a fork that copied the generator's state: only the attempt tells them apart."""
        fence = self.run_of(pick).fence
        self.release_token_of(AT_ONCE, fence.token)
        self.claim_ids(AT_ONCE, [fence.task_id, *self.ids_of(picks)], worker, fence.token)

    @rule(picks=some, worker=workers)
    def claim_in_vain_and_again(self, picks: list[Pick], worker: Worker) -> None:
        """The first COMMIT does not take place: only the token tells the two attempts apart."""
        ids = self.ids_of(picks)
        self.claim_ids(LAST, ids, worker)
        self.end(LAST, commits=False)
        self.claim_ids(AT_ONCE, ids, worker)

    @rule(
        seat=seats,
        queues=st.sampled_from((["q1", "q2"], ["q2"], ["q1"])),
        most=st.sampled_from((1, 2, 9)),
        worker=workers,
        lonely=st.booleans(),
    )
    def claim_next(
        self, seat: int, queues: list[str], most: int, worker: Worker, *, lonely: bool
    ) -> None:
        now, token = self.now, uuid4()
        self._claim(
            seat,
            lambda c: claim_next(c, queues, most, claimer(worker), token, lonely=lonely, now=now),
            lambda view, _: claims.claim_next(
                view, queues, most, worker, token, LEASE, now, lonely=lonely
            ),
        )

    def claim_ids(
        self, seat: int, ids: list[int], worker: Worker, token: UUID | None = None
    ) -> None:
        now, token = self.now, token or uuid4()
        self._claim(
            seat,
            lambda c: claim(c, ids, claimer(worker), token, now=now),
            lambda view, _: claims.claim(view, ids, worker, token, LEASE, now),
        )

    def _claim(self, seat: int, call: Any, foresee: Any) -> None:
        taken: list[ClaimedTask] = []

        def take(connection: Connection) -> list[tuple]:
            taken.extend(call(connection))
            return list(map(shown, taken))

        def expect(view: View, answer: Any) -> Expected:
            expected = foresee(view, answer)
            expected.answer = list(map(as_claimed, expected.answer))
            return expected

        self.do(seat, take, expect)
        self.runs += taken

    @rule(seat=seats, pick=one, word=words, wait=waits, way_out=ways_out)
    def settle_one(self, seat: int, pick: Pick, word: str, wait: timedelta, way_out: str) -> None:
        now, task = self.now, self.run_of(pick)
        ending = Ending(task.fence, word, wait)

        def foresee(view: View, _: Any) -> Expected:
            expected = runs.settle(view, [ending], now, patient=True)
            expected.answer = expected.answer.get(task.task_id)
            return expected

        self.do(
            seat, lambda c: settle_one(c, settlement(task, word, wait), now=now), foresee, way_out
        )

    @rule(seat=seats, picks=some, word=words, other=words, wait=waits)
    def settle_group(
        self, seat: int, picks: list[Pick], word: str, other: str, wait: timedelta
    ) -> None:
        ends = [(task, other if n else word) for n, task in enumerate(self.runs_of(picks))]
        self.settle_all(seat, ends, wait)

    def settle_all(self, seat: int, ends: list[tuple[ClaimedTask, str]], wait: timedelta) -> None:
        now = self.now
        settlements = [settlement(task, how, wait) for task, how in ends]
        endings = [Ending(task.fence, how, wait) for task, how in ends]
        self.do(
            seat,
            lambda c: settle_group(c, settlements, now=now),
            lambda view, _: runs.settle(view, endings, now, patient=False),
        )

    @rule(seat=seats, pick=one, way_out=ways_out)
    def write_an_effect_and_succeed(self, seat: int, pick: Pick, way_out: str) -> None:
        """As a handler does with ``ctx.session``: without the fence its effect is rolled back."""
        task = self.run_of(pick)

        def call(connection: Connection) -> bool:
            effect = {"task_id": task.task_id, "attempt": task.fence.attempt}
            with connection.begin_nested() as savepoint:
                connection.execute(EFFECT, effect)
                ours = succeed(connection, settlement(task, "succeed", LEASE))
                if not ours:
                    savepoint.rollback()
            return ours

        self.do(
            seat, call, lambda view, _: runs.succeed(view, task.fence), way_out, keeps_locks=False
        )

    @rule(seat=seats, picks=some, wait=waits)
    def release_group(self, seat: int, picks: list[Pick], wait: timedelta) -> None:
        self._release(seat, self.runs_of(picks), wait, GIVE_UP, block=False)

    @rule(seat=seats, pick=one, wait=waits, way_out=ways_out)
    def release_one(self, seat: int, pick: Pick, wait: timedelta, way_out: str) -> None:
        self._release(seat, [self.run_of(pick)], wait, way_out, block=True)

    def _release(
        self, seat: int, tasks: list[ClaimedTask], wait: timedelta, way_out: str, *, block: bool
    ) -> None:
        now, fences = self.now, [task.fence for task in tasks]

        def foresee(view: View, _: Any) -> Expected:
            expected = runs.each_held(
                view, fences, lambda row: runs.back(row, now + wait), patient=block
            )
            expected.answer = {task_id: row.state for task_id, row in expected.answer.items()}
            return expected

        self.do(
            seat, lambda c: release(c, fences, wait=wait, block=block, now=now), foresee, way_out
        )

    @rule(seat=seats, pick=one)
    def release_token(self, seat: int, pick: Pick) -> None:
        self.release_token_of(seat, self.run_of(pick).fence.token)

    def release_token_of(self, seat: int, token: UUID) -> None:
        now = self.now

        def foresee(view: View, _: Any) -> Expected:
            rows = [row for row in view.rows() if row.token == token and view.free(row.id)]
            after = {row.id: runs.back(row, now) for row in rows}
            return Expected(set(after), after)

        self.do(seat, lambda c: release_token(c, token, now=now), foresee)

    @rule(seat=seats, picks=some)
    def renew(self, seat: int, picks: list[Pick]) -> None:
        now, fences = self.now, [task.fence for task in self.runs_of(picks)]

        def foresee(view: View, _: Any) -> Expected:
            expected = runs.each_held(view, fences, lambda row: row.but(lease_until=now + LEASE))
            expected.answer = frozenset(expected.answer)
            return expected

        self.do(seat, lambda c: renew(c, fences, LEASE, now=now), foresee)

    @rule(seat=seats, pick=one, n=st.integers(10, 19), way_out=ways_out)
    def amend(self, seat: int, pick: Pick, n: int, way_out: str) -> None:
        task = self.run_of(pick)

        def foresee(view: View, _: Any) -> Expected:
            expected = runs.each_held(
                view, [task.fence], lambda row: row.but(payload={"n": n}), patient=True
            )
            expected.answer = bool(expected.answer)
            return expected

        self.do(
            seat, lambda c: replace_payload(c, task.fence, json.dumps({"n": n})), foresee, way_out
        )

    @rule(number=st.integers(0, 9), word=words)
    def a_late_run_writes(self, number: int, word: str) -> None:
        """All that it could, while its task is another's."""
        late = ("late", number)
        self.write_an_effect_and_succeed(AT_ONCE, late, GIVE_UP)
        self.settle_one(AT_ONCE, late, word, LEASE, GIVE_UP)
        self.settle_group(AT_ONCE, [late], word, word, LEASE)
        self.amend(AT_ONCE, late, 20, GIVE_UP)
        self.renew(AT_ONCE, [late])
        self.release_one(AT_ONCE, late, LEASE, GIVE_UP)

    @rule(seat=seats, picks=some, others=some, worker=workers)
    def look(self, seat: int, picks: list[Pick], others: list[Pick], worker: Worker) -> None:
        """What reads without a lock tells what this transaction sees."""
        fences, ids = [task.fence for task in self.runs_of(picks)], self.ids_of(others)

        def foresee(view: View, _: Any) -> Expected:
            held = {f.task_id for f in fences if runs.holds(view.pending(f.task_id), f)}
            rows = [view.pending(task_id) for task_id in ids]
            waits = [row.id for row in rows if row and row.token is None]
            owned = [as_claimed(row) for row in view.rows() if row.owner == worker.owner]
            return Expected((held, waits, owned))

        self.do(
            seat,
            lambda c: (
                still_held(c, fences),
                still_pending(c, ids),
                list(map(shown, claims_of(c, worker.owner))),
            ),
            foresee,
        )


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
