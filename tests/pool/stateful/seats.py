"""Where a verb acts: in a transaction of its own, or in one that stays open while others act."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from psycopg.errors import LockNotAvailable
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import OperationalError

from tests.pool.interleave import blocked
from tests.pool.stateful.world import Expected, View, Waits, World

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
