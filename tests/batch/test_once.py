"""Every row once: whatever the key is, however it is split, whoever is killed or gives half away.

`make test` tries the same tables each time, `make stateful` others.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text

from tasks_app.batch.execution.chunk import reader_of
from tasks_app.batch.execution.partition_run import Stealing
from tasks_app.batch.job import BatchJob
from tasks_app.batch.planners.even import Even
from tasks_app.batch.planners.indicator import Indicator
from tasks_app.batch.replan import replan, share
from tasks_app.batch.step import Step
from tasks_app.batch.validate import split
from tasks_app.domain.batch.policies import CommitEvery
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import Plan, StoredPartition
from tasks_app.pool.batch import partitions
from tasks_app.pool.batch.sources import marks
from tasks_app.runtime.handlers.registry import Registry
from tests.batch.odd_tables import REFUSED, Odd, odd_tables
from tests.batch.yard import Greedy

EXAMPLES = int(os.environ.get("STATEFUL_EXAMPLES", "0"))
"""So many at random, from the seed that is told; 0: always the same ones, in every `make test`."""
QUICK = 120
PROGRAM = "p#1"
any_table = settings(
    max_examples=EXAMPLES or QUICK,
    derandomize=not EXAMPLES,
    phases=tuple(Phase) if EXAMPLES else (Phase.generate,),
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
NO_ORDER = "page_by"
"""What a refusal names when rows are not told apart."""
OF_THE_PLANNER = (
    "cannot be split into ranges of|more than 10000. Use a larger width|cannot be sampled|"
    "cannot be listed|is no table|cannot be marked|has no partitions in the database|"
    "characters long|no statistics"
)


class Days:
    """Runs of the partitions of one program, in any order, killed and divided on their way."""

    def __init__(self, connection: Connection, step: Step, data: st.DataObject) -> None:
        self.connection = connection
        self.step = step
        self.job = BatchJob("once", [step], registry=Registry())
        self.draw = data.draw
        self.done: list[int] = []
        self.ended: set[int] = set()
        self.readers: dict[int, Any] = {}

    def parts(self) -> list[StoredPartition]:
        found = partitions.find_by_program(self.connection, PROGRAM)
        return [each for each in found if each.id not in self.ended]

    def to_the_end(self) -> None:
        """Until all partitions are done, or one refuses to be read."""
        acts = [self.page] * 4 + [self.killed, self.forgotten, self.gives, self.replanned]
        for _ in range(400):
            left = self.parts()
            if not left:
                return
            self.draw(st.sampled_from(acts))(self.draw(st.sampled_from(left)))
        while left := self.parts():
            self.page(left[0])

    def page(self, stored: StoredPartition) -> None:
        """A chunk that commits."""
        rows, last = self.read(stored)
        self.done += [int(row.id if hasattr(row, "id") else row["id"]) for row in rows]
        reader = self.readers[stored.id]
        place = reader.after(rows) if rows else (stored.checkpoint or {}).get("after")
        self.keep(stored, {"after": place, "until": reader.until, "state": {}})
        if last:
            self.ended.add(stored.id)

    def killed(self, stored: StoredPartition) -> None:
        """A chunk that was read and is not committed."""
        with self.connection.begin_nested() as savepoint:
            self.read(stored)
            savepoint.rollback()
        self.readers.pop(stored.id, None)

    def forgotten(self, stored: StoredPartition) -> None:
        """A process that dies between two chunks."""
        self.readers.pop(stored.id, None)

    def gives(self, stored: StoredPartition) -> None:
        """A run that gives half away."""
        stealing = Stealing(self.job, self.step, None)
        stealing._somebody_waits = lambda *_: False  # type: ignore[method-assign]
        halves = stealing.halves(self.connection, stored.id, Greedy(CommitEvery(1)))
        if halves:
            numbers = [each.partition.number for each in self.all()]
            made = share(self.connection, stored, halves, 1 + max(numbers))
            until = stored.checkpoint["until"]
            partitions.set_range_end(self.connection, list(made.values()), until)
            self.readers.pop(stored.id, None)

    def replanned(self, stored: StoredPartition) -> None:
        """An operator who divides what has not started."""
        if stored.partition.view is None and stored.partition.kind == "range":
            numbers = {stored.partition.number}
            replan(self.connection, PROGRAM, self.step.source, Even(parts=2), numbers)
            self.readers.pop(stored.id, None)

    def all(self) -> list[StoredPartition]:
        return partitions.find_by_program(self.connection, PROGRAM)

    def read(self, stored: StoredPartition) -> tuple[list[Any], bool]:
        place = stored.checkpoint or {}
        if stored.id not in self.readers:
            until = place.get("until")
            made = reader_of(self.connection, self.step, None, stored, until)
            self.readers[stored.id] = made
        reader, size = self.readers[stored.id], self.draw(st.integers(1, 6))
        rows = reader.read(self.connection, place.get("after"), size)
        return list(rows), reader.is_last(self.connection, rows, size)

    def keep(self, stored: StoredPartition, checkpoint: Any) -> None:
        self.connection.execute(
            text("UPDATE task_partition SET checkpoint = CAST(:it AS jsonb) WHERE id = :id"),
            {"it": json.dumps(checkpoint), "id": stored.id},
        )


def planned(connection: Connection, odd: Odd, step: Step) -> Plan | None:
    """The plan; None: it was refused, for a reason that there is."""
    try:
        plan = split(connection, step, None)
    except PlanError as error:
        known = OF_THE_PLANNER if odd.has_order else f"{OF_THE_PLANNER}|{NO_ORDER}"
        if not re.search(known, str(error)):
            raise
        return None
    partitions.insert(connection, PROGRAM, plan, batch_id=1, step="step")
    if isinstance(odd.planner, Indicator) and odd.planner.marker is None:
        try:
            marks.fill(connection, PROGRAM, odd.source)
        except PlanError:
            return None
    return plan


def step_of(odd: Odd) -> Step:
    return Step("step", odd.source, chunk=lambda *_: None, planner=odd.planner, page_by=odd.page_by)


@pytest.mark.test_all
@pytest.mark.timeout(0)
@given(data=st.data())
@any_table
def test_every_row_is_done_once(
    connection: Connection, tmp_path: Path, data: st.DataObject
) -> None:
    odd = data.draw(odd_tables(tmp_path))
    with connection.begin_nested() as savepoint:
        odd.make(connection)
        days = Days(connection, step_of(odd), data)
        if planned(connection, odd, days.step) is not None:
            try:
                days.to_the_end()
            except PlanError as error:
                if odd.has_order or NO_ORDER not in str(error):
                    raise
            else:
                assert Counter(days.done) == Counter(range(1, len(odd.keys) + 1))
        savepoint.rollback()


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("domain", [0, 1])
@pytest.mark.parametrize("reads", ["table", "query"])
def test_what_has_no_exact_order_is_refused_at_the_plan(
    connection: Connection, kind: str, domain: int, reads: str
) -> None:
    odd = Odd(kind, [], domain=domain, reads=reads, planner=Even(parts=2))
    odd.make(connection)

    with pytest.raises(PlanError, match="cannot be a key"):
        split(connection, step_of(odd), None)
