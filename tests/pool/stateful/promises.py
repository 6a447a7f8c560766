"""What must be true after every step, whatever the model says: from the rows alone."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis.stateful import invariant

from tasks_app.domain.operations import Amendment, BulkAction
from tasks_app.domain.tasks.states import State
from tests.pool.stateful.oracle_of_people import read_notes, read_pauses, read_rows
from tests.pool.stateful.rules_of_operators import Operators, Waiting
from tests.pool.stateful.rules_of_rescuers import Rescuers
from tests.pool.stateful.rules_of_workers import EVERYBODY, Admissions
from tests.pool.stateful.world import AT_ONCE, Row

DAY = timedelta(days=1)


class Promises(Admissions, Rescuers, Operators, Waiting):
    """Looks at what is committed after each step, and compares it with what it saw before."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[int, Row] = {}
        self.keys: dict[int, UUID] = {}
        self.tokens: dict[tuple[int, int], UUID] = {}
        self.watcher = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    @invariant()
    def the_promises_hold_and_the_rows_are_those_of_the_model(self) -> None:
        read = read_rows(self.watcher)
        pauses, notes = read_pauses(self.watcher), read_notes(self.watcher)
        rows = {row.id: row for row, _ in read}
        self._each_id_lies_in_one_pool(read, rows)
        self._no_task_is_lost(rows)
        for row in rows.values():
            self._attempts_grow_and_have_one_owner(row)
            before = self.before.get(row.id)
            if before is not None and before != row:
                self._it_moved_as_it_may(before, row)
        self._effects_and_successes_are_one(rows, notes)
        self._of_an_order_key_one_runs(rows)
        self.before = rows
        assert rows | pauses == self.world.things
        assert notes == self.world.notes
        self.sound = True

    def _each_id_lies_in_one_pool(self, read: list[tuple[Row, Any]], rows: dict[int, Row]) -> None:
        assert len(read) == len(rows), "an id lies twice"
        for row, key in read:
            assert self.keys.setdefault(row.id, key) == key, "another idempotency_key"

    def _no_task_is_lost(self, rows: dict[int, Row]) -> None:
        assert self.before.keys() <= rows.keys(), "a task is nowhere"

    def _attempts_grow_and_have_one_owner(self, row: Row) -> None:
        if row.state is State.RUNNING:
            known = self.tokens.setdefault((row.id, row.attempt), row.token)
            assert known == row.token, "two claims have one attempt"

    def _it_moved_as_it_may(self, before: Row, row: Row) -> None:
        assert row.attempt >= before.attempt, "the attempt fell"
        assert (row.name, row.created_at) == (before.name, before.created_at)
        if row.but(payload=before.payload, order_skips=before.order_skips) == before:
            pass  # a failed one may be edited, and may let others pass
        elif before.is_over:
            assert row.id in self.requeued, "what is over moved, and nobody requeued it"
            self.requeued.discard(row.id)
        elif before.cancel_requested_at and row.attempt == before.attempt:
            told = row.cancel_requested_at or row.id in self.requeued
            assert told, "a wish to cancel was forgotten"
            assert row.state not in (State.PENDING, State.FAILED), "who was to stop came back"
        else:
            assert row.failures <= before.failures + row.attempt - before.attempt + 1

    def _of_an_order_key_one_runs(self, rows: dict[int, Row]) -> None:
        keys = [row.order_key for row in rows.values() if row.token and row.order_key]
        assert len(keys) == len(set(keys)), "two of one order key run"

    def _effects_and_successes_are_one(self, rows: dict[int, Row], notes: Counter) -> None:
        for (event, task_id, attempt), times in notes.items():
            if event != "effect":
                continue
            assert times == 1, "an effect took place twice"
            row = rows[task_id]
            if row.attempt == attempt:  # else it was requeued, and claimed again
                assert row.state not in (State.RUNNING, State.FAILED), "an effect without success"

    def teardown(self) -> None:
        try:
            if self.sound:
                self._whatever_happened_each_task_ends()
        finally:
            self.watcher.close()
            super().teardown()

    def _whatever_happened_each_task_ends(self) -> None:
        """Once nobody's transaction, pause or lease is in the way."""
        for seat in sorted(self.world.open):
            self.end(seat, commits=False)
        self.resume(AT_ONCE, "*")
        for task_id in self._unfinished():
            self.amend_task(AT_ONCE, BulkAction.RELEASE, task_id, Amendment())
        self.later(DAY)
        self.rescue_expired(AT_ONCE, 500, 0.5)
        while left := self._unfinished():
            self.later(DAY)
            self.sweep_ids(AT_ONCE, left)
            known = len(self.runs)
            self.claim_next(AT_ONCE, ["q1", "q2"], 9, EVERYBODY, lonely=True)
            for row in self.world.view(AT_ONCE).everything():
                self.unblock_of(AT_ONCE, row.id)
            self.claim_ordered_ids(AT_ONCE, left, EVERYBODY)
            taken = [(task, "succeed") for task in self.runs[known:]]
            self.settle_all(AT_ONCE, taken, DAY)
            self.the_promises_hold_and_the_rows_are_those_of_the_model()
            assert len(self._unfinished()) < len(left), "a task is stuck"

    def _unfinished(self) -> list[int]:
        return [row.id for row in self.world.view(AT_ONCE).rows()]
