"""Ranges of one width, however many rows lie in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal, localcontext
from typing import Any

from sqlalchemy import Connection

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.cuts import MOST, partition_of_nulls
from tasks_app.domain.partition.keys import Key, KeyType, quoted_key, ranges_between
from tasks_app.domain.partition.records import Extent, Partition, Plan
from tasks_app.pool.batch.sources.measure import extent
from tasks_app.pool.batch.sources.relation import Source, find

_DIGITS = 300_000  # twice what a numeric can have: Python rounds to 28 digits when it calculates


@dataclass(frozen=True, slots=True)
class Fixed:
    """Ranges like 0 .. 999, 1000 .. 1999: reads only both ends; as even as the keys are dense."""

    width: int | Decimal | timedelta
    start: Key | None = None
    """Where one of the ranges begins; None: 0, or the least key if keys are not numbers."""

    def plan(self, connection: Connection, source: Source) -> Plan:
        """Split; the first and the last range have no outer bound."""
        relation = find(connection, source)
        self._check(relation.key_type)
        found = extent(connection, relation)
        with localcontext(prec=_DIGITS):
            spans = ranges_between(list(self._cuts(found)))
        partitions = [Partition(number, range=span) for number, span in enumerate(spans, 1)]
        if found.nulls:
            partitions.append(partition_of_nulls(len(partitions) + 1, None))
        method = f"fixed, {self.width}"
        return Plan(method, relation.key_type, tuple(partitions), relation.rows)

    def _check(self, key_type: KeyType) -> None:
        wanted: dict[bool, tuple[type, ...]] = {
            key_type.is_time: (timedelta,),
            key_type is KeyType.INTEGER: (int,),
            key_type is KeyType.NUMERIC: (int, Decimal),
        }
        if not isinstance(self.width, wanted.get(True, ())):
            raise PlanError(
                f"Keys of type {key_type} cannot be split into ranges of {self.width!r}. "
                "Give a number for numbers, a timedelta for times; split text by Even or Hash."
            )
        step: Any = self.width
        if step <= type(self.width)(0):
            raise PlanError(f"The width is {self.width}. Use one above 0.")
        if key_type is KeyType.DATE and step % timedelta(days=1):
            raise PlanError(f"The width is {self.width}, but keys are days. Use whole days.")

    def _cuts(self, found: Extent) -> Iterator[Key]:
        least: Any = found.least
        most: Any = found.most
        start: Any = self.start
        step: Any = self.width
        if least is None:
            return
        if start is None:
            start = 0 if isinstance(least, int | Decimal) else least
        passed = _floor(least - start, step)
        number = _floor(most - start, step) - passed
        if number >= MOST:
            many = number + 1 if number < 10**12 else "too many"
            raise PlanError(
                f"Keys from {quoted_key(least)} to {quoted_key(most)} make {many} ranges of "
                f"{self.width}, more than {MOST}. Use a larger width."
            )
        for place in range(1, int(number) + 1):
            yield start + (passed + place) * step


def _floor(span: Any, step: Any) -> Any:
    if isinstance(span, Decimal):  # its own division rounds towards 0
        times, rest = divmod(span, step)
        return times - (rest != 0 and (rest < 0) != (step < 0))
    return span // step
