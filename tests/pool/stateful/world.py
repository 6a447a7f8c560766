"""The model of the pool: a dictionary, and a small one on top for each transaction that is open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from tasks_app.domain.tasks.states import Pool, State, pool_of


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
        """The row, if it lies in the pending pool."""
        row = self.get(task_id)
        return None if row is None or row.is_over else row

    def rows(self) -> Iterator[Row]:
        """The pending pool, lowest id first."""
        mine = self._world.open.get(self._seat, Open())
        everything = self._world.things | mine.changes
        rows = [row for row in everything.values() if isinstance(row, Row) and not row.is_over]
        yield from sorted(rows, key=lambda row: row.id)

    def everything(self) -> list[Row]:
        """All pools, lowest id first."""
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
