"""Which tasks and runs a verb is told of: mostly such as matter, sometimes any, late or forged."""

from __future__ import annotations

from uuid import UUID

from hypothesis import strategies as st

from tasks_app.domain.tasks.run import ClaimedTask, Fence
from tests.pool.stateful.seats import Seats
from tests.pool.stateful.world import Row

NOBODYS = 10**15
"""An id of a forged message."""
FORGED = ClaimedTask(
    Fence(NOBODYS, 1, UUID(int=1)),
    *("a", "q1", None, "{}", None, 0, 0, 0, 3, False, None, None, None, "", 0.0, 0.0, False),
)
Pick = tuple[str, int]
"""Of which kind, and its number, from the newest on."""
one = st.tuples(st.sampled_from(("current", "current", "late", "any")), st.integers(0, 9))
some = st.lists(one, min_size=1, max_size=5)


class Picks(Seats):
    """Keeps every id and every run that ever was, also of transactions that were rolled back."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = [NOBODYS]
        self.runs = [FORGED]

    def id_of(self, pick: Pick, *, over: bool = False) -> int:
        """Of what is committed, and is over or is not; or any."""
        kind, number = pick
        rows = [row for row in self.world.things.values() if isinstance(row, Row)]
        such = [row.id for row in rows if row.is_over is over]
        there = such if kind != "any" and such else self.ids
        return there[-1 - number % len(there)]

    def run_of(self, pick: Pick) -> ClaimedTask:
        """Of those that hold their task; or whose task is another run's by now; or any."""
        kind, number = pick
        running = self._running()
        fences = {(row.id, row.attempt, row.token) for row in running}
        ids = {row.id for row in running}
        such = {
            "current": [run for run in self.runs if run.fence in fences],
            "late": [r for r in self.runs if r.task_id in ids and r.fence not in fences],
        }
        there = such.get(kind) or self.runs
        return there[-1 - number % len(there)]

    def ids_of(self, picks: list[Pick]) -> list[int]:
        return [self.id_of(pick) for pick in picks]

    def runs_of(self, picks: list[Pick]) -> list[ClaimedTask]:
        return list({run.fence: run for run in map(self.run_of, picks)}.values())

    def _running(self) -> list[Row]:
        worlds = [self.world.things, *(other.changes for other in self.world.open.values())]
        rows = [row for things in worlds for row in things.values()]
        return [row for row in rows if isinstance(row, Row) and row.token]
