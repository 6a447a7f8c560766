"""Partitions that people maintain in ``task_partition``."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import Plan
from tasks_app.pool.batch.partitions import find_by_program
from tasks_app.pool.batch.sources.relation import Source


@dataclass(frozen=True, slots=True)
class Repository:
    """The rows of a program. They are checked before each start, and never changed.

    Keys that no row owns make the plan wrong, until a row for them is added.
    """

    program: str

    def plan(self, connection: Connection, source: Source) -> Plan:  # noqa: ARG002
        stored = find_by_program(connection, self.program)
        types = sorted({each.key_type for each in stored})
        if not types:
            raise PlanError(
                f"task_partition has no rows of program {self.program}. Insert some, or check the "
                "name."
            )
        if len(types) > 1:
            raise PlanError(
                f"Partitions of {self.program} have keys of several types: {', '.join(types)}. "
                "Give all the type of the key."
            )
        partitions = tuple(each.partition for each in stored)
        rows = [each.rows for each in partitions if each.rows is not None]
        total = sum(rows) if len(rows) == len(partitions) else None
        return Plan("repository", types[0], partitions, total)
