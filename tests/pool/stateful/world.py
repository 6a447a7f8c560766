"""The model of the pool: a dictionary, and a small one on top for each transaction that is open."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from psycopg.errors import LockNotAvailable
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import OperationalError

from tasks_app.domain.tasks.states import Pool, State, pool_of
from tests.pool.interleave import blocked


@dataclass(frozen=True)
class Row:
    """A task as it must be; what a pool has no column for is None."""

    id: int
    name: str
    queue: str
    priority: int
    biz_key: str | None
    unique_key: str | None
    payload: dict[str, Any]
    enabled: bool
    max_attempts: int | None
    due_at: datetime
    scan_at: datetime | None
    expires_at: datetime | None
    created_at: datetime
    retry_level: int = 0
    state: State = State.PENDING
    at_most_once: bool | None = None
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    parked: str | None = None
    owner: str | None = None
    token: UUID | None = None
    lease_until: datetime | None = None
    started_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    error: str | None = None
    result: Any = None
    order_key: str | None = None
    order_skips: bool | None = None
    held_due_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        return pool_of(self.state) is not Pool.PENDING

    @property
    def key(self) -> tuple[str, str] | None:
        """What no second row of the pending pool may have."""
        return (self.name, self.unique_key) if self.unique_key and not self.is_over else None

    def but(self, **changes: Any) -> Row:
        return replace(self, **changes)


Thing = Row | str
"""A task, by its id, or the reason of a pause, by its queue."""
Changes = dict[int | str, Thing | None]


@dataclass
class Expected:
    """What a verb must return, which rows must then be, and what it holds until its commit."""

    answer: Any
    changes: Changes = field(default_factory=dict)
    holds: set[int | str] = field(default_factory=set)
    notes: Counter = field(default_factory=Counter)
    """Lines of the history, and effects: they are only ever added."""


class Waits(Exception):  # noqa: N818  it is no error
    """The verb would wait for the transaction of ``seat``."""

    def __init__(self, seat: int, task_id: int | None = None) -> None:
        super().__init__(seat)
        self.seat = seat
        self.task_id = task_id
        """Whose row it waits for, if it is one of the pending pool."""


@dataclass
class Open:
    """What a transaction has written, and what nobody else can write until it ends."""

    changes: Changes = field(default_factory=dict)
    holds: set[int | str] = field(default_factory=set)
    keys: set[tuple[str, str]] = field(default_factory=set)
    notes: Counter = field(default_factory=Counter)


class World:
    """What is committed, and the transactions that are open."""

    def __init__(self) -> None:
        self.things: Changes = {}
        self.notes: Counter = Counter()
        self.open: dict[int, Open] = {}

    def view(self, seat: int) -> View:
        return View(self, seat)

    def write(self, seat: int, expected: Expected) -> None:
        mine = self.open.setdefault(seat, Open())
        view = self.view(seat)
        for key, after in expected.changes.items():
            for row in (view.get(key), after):
                if isinstance(row, Row) and row.key:
                    mine.keys.add(row.key)
            mine.changes[key] = after
        mine.holds |= expected.holds | expected.changes.keys()
        mine.notes += expected.notes

    def commit(self, seat: int) -> None:
        mine = self.open.pop(seat, Open())
        self.things |= mine.changes
        self.things = {key: thing for key, thing in self.things.items() if thing is not None}
        self.notes += mine.notes

    def roll_back(self, seat: int) -> None:
        self.open.pop(seat, None)


class View:
    """What a transaction sees: what is committed, and what it wrote itself."""

    def __init__(self, world: World, seat: int) -> None:
        self._world, self._seat = world, seat

    def get(self, key: int | str) -> Any:
        mine = self._world.open.get(self._seat)
        return mine.changes[key] if mine and key in mine.changes else self._world.things.get(key)

    def pending(self, task_id: int) -> Row | None:
        row = self.get(task_id)
        return None if row is None or row.is_over else row

    def rows(self) -> Iterator[Row]:
        """The pending pool, lowest id first."""
        mine = self._world.open.get(self._seat, Open())
        everything = self._world.things | mine.changes
        rows = [row for row in everything.values() if isinstance(row, Row) and not row.is_over]
        yield from sorted(rows, key=lambda row: row.id)

    def everything(self) -> list[Row]:
        mine = self._world.open.get(self._seat, Open())
        things = (self._world.things | mine.changes).values()
        return sorted([row for row in things if isinstance(row, Row)], key=lambda row: row.id)

    def stands_still(self, queue: str) -> bool:
        return self.get(queue) is not None or self.get("*") is not None

    def free(self, key: int | str) -> bool:
        """Whether no other transaction holds it."""
        return all(key not in other.holds for _, other in self._others())

    def wait_for(self, key: int | str) -> None:
        for seat, other in self._others():
            if key in other.holds:
                raise Waits(seat, key if isinstance(key, int) and self.pending(key) else None)

    def holder_of(self, key: tuple[str, str] | None) -> Row | None:
        """The row with this unique key; waits for whoever has written one with it."""
        if key is None:
            return None
        for seat, other in self._others():
            if key in other.keys:
                raise Waits(seat)
        return next((row for row in self.rows() if row.key == key), None)

    def _others(self) -> Iterator[tuple[int, Open]]:
        return ((s, o) for s, o in self._world.open.items() if s != self._seat)


BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
BRIEFLY = text("SET LOCAL lock_timeout = '10ms'")
AT_ONCE = 0
LAST = 2
SEATS = (AT_ONCE, 1, LAST)
CLEAN = "; ".join(
    f"DELETE FROM {table}"
    for table in (
        *("task_pending", "task_completed", "task_error", "task_attempt"),
        *("task_queue_pause", "task_gate", "stateful_effect"),
    )
)


CLEAN += "; INSERT INTO task_gate (gate) VALUES ('order o'), ('order p')"
"""Of so few rows that a TRUNCATE would cost more."""


seats = st.sampled_from((AT_ONCE, AT_ONCE, 1, 2))
GIVE_UP = "give up"
ways_out = st.sampled_from((GIVE_UP, "it commits", "it rolls back"))
"""What happens if the verb has to wait for another's transaction."""
Foresee = Callable[[View, Any], Expected]


class Seats(RuleBasedStateMachine):
    """The model, the database, and a step that both of them take."""

    engine: Engine
    tally: ClassVar[Counter[tuple[str, str]]]
    """How often each rule changed something, did nothing, waited, or gave up."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.now = BEGIN
        self.sound = False
        """Whether the last step was as it should be; else nobody need look at how it ends."""
        self.connections = {seat: self.engine.connect() for seat in SEATS}
        with self.engine.begin() as connection:
            connection.exec_driver_sql(CLEAN)

    def do(
        self,
        seat: int,
        call: Callable[[Connection], Any],
        foresee: Foresee,
        way_out: str = GIVE_UP,
        *,
        keeps_locks: bool = True,
    ) -> Any:
        """Carry out a verb and compare its answer; ``foresee`` gets it for what is random in it.

        None if it had to wait and gave up. ``keeps_locks``: not if it rolls back to a savepoint
        when it finds nothing to do.
        """
        self.sound, waited_for = False, None
        connection, rule = self.connections[seat], foresee.__qualname__.split(".")[1]
        try:
            foresee(self.world.view(seat), None)
        except Waits as waits:
            note(f"waits for seat {waits.seat}: {way_out}")
            if way_out == GIVE_UP:
                self.tally[rule, GIVE_UP] += 1
                self._gives_up(connection, call)
                self._leave(seat)
                return None
            self.tally[rule, way_out] += 1
            waited_for = waits.task_id
            waiting = blocked(self.engine, connection, self.connections[waits.seat], call)
            self.end(waits.seat, commits=way_out == "it commits")
            self._end_what_is_in_the_way(seat, foresee)
            answer = waiting.result()
        else:
            answer = call(connection)
        expected = foresee(self.world.view(seat), answer)
        if waited_for and keeps_locks and self.world.view(seat).pending(waited_for):
            expected.holds.add(waited_for)  # PostgreSQL locks it before it finds that it is none
        note(f"seat {seat}, {rule}: {answer}")
        assert answer == expected.answer
        self.tally[rule, "changed" if expected.changes else "nothing"] += 1
        self.world.write(seat, expected)
        self._leave(seat)
        return answer

    def _end_what_is_in_the_way(self, seat: int, foresee: Foresee) -> None:
        """Who waited for one transaction may then wait for the next."""
        for _ in SEATS:
            try:
                foresee(self.world.view(seat), None)
            except Waits as waits:
                self.end(waits.seat, commits=True)

    def _gives_up(self, connection: Connection, call: Callable[[Connection], Any]) -> None:
        savepoint = connection.begin_nested()
        connection.execute(BRIEFLY)
        with pytest.raises((OperationalError, LockNotAvailable)) as refusal:
            call(connection)
        assert isinstance(getattr(refusal.value, "orig", refusal.value), LockNotAvailable)
        savepoint.rollback()

    def _leave(self, seat: int) -> None:
        if seat == AT_ONCE:
            self.end(seat, commits=True)

    def end(self, seat: int, *, commits: bool) -> None:
        """End a transaction, here and there."""
        if commits:
            self.connections[seat].commit()
            self.world.commit(seat)
        else:
            self.connections[seat].rollback()
            self.world.roll_back(seat)

    def later(self, span: timedelta) -> None:
        self.now += span

    def teardown(self) -> None:
        for connection in self.connections.values():
            connection.close()


EXAMPLES = int(os.environ.get("STATEFUL_EXAMPLES", "0"))
"""So many at random, from the seed that is told; 0: always the same ones, in every `make test`."""
STEPS = 40
