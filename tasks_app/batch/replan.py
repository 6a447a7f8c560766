"""Ranges are divided further; the old partition keeps the first keys, under its number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from sqlalchemy import Connection

from tasks_app.batch.planners.even import Even
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.cuts import ranges_of_cuts
from tasks_app.domain.partition.keys import Range
from tasks_app.domain.partition.records import Partition, PartitionKind, Plan, StoredPartition
from tasks_app.pool.batch import partitions
from tasks_app.pool.batch.sources.cuts import keys_owned
from tasks_app.pool.batch.sources.relation import Source


def replan(
    connection: Connection,
    program: str,
    source: Source,
    into: Even,
    numbers: set[int] | None = None,
) -> dict[int, int]:
    """Divide the partitions of a program that have not started; ``numbers``: only these.

    Each keeps the first of its keys; new ones, with numbers that none had before, own the others.
    Return their ids by number: create tasks for them in the same transaction. A run that is about
    to start an old one waits, and finds it smaller. Raises PlanError if one is no range of keys.
    """
    waiting = partitions.lock_waiting(connection, program, numbers)
    stored = {
        each.partition.number: each for each in partitions.find_by_program(connection, program)
    }
    made: dict[int, int] = {}
    for number in waiting:
        old = stored[number]
        pieces = _divide(connection, source, old, into)
        made |= share(connection, old, pieces, 1 + max([*stored, *made]))
    return made


def share(
    connection: Connection, old: StoredPartition, pieces: Sequence[Partition], first: int
) -> dict[int, int]:
    """Shorten a partition to the first piece; insert the others, numbered from ``first`` on."""
    kept, *others = pieces
    if not others:
        return {}
    partitions.shorten_range(connection, old.id, kept, old.key_type)
    new = tuple(replace(each, number=first + place) for place, each in enumerate(others))
    plan = Plan("replanned", old.key_type, new)
    return partitions.insert(connection, old.program, plan, batch_id=old.batch_id, step=old.step)


def _divide(
    connection: Connection, source: Source, old: StoredPartition, into: Even
) -> list[Partition]:
    """Return partitions that own the same keys evenly, in the order of the keys."""
    partition, span = old.partition, old.partition.range
    if not can_be_divided(partition):
        raise PlanError(
            f"{partition} cannot be divided: it is not a range of keys. Plan the program again."
        )
    if span is None:
        return [partition]
    cuts, number, _ = into.cut(connection, keys_owned(connection, source, partition, old.key_type))
    made = ranges_of_cuts(cuts, number, source=partition.source)
    bounds = pairwise([span.low, *(cut.key for cut in cuts), span.high])
    made = [replace(each, range=Range(*ends)) for each, ends in zip(made, bounds, strict=True)]
    return [replace(made[0], owns_null=partition.owns_null), *made[1:]]


def can_be_divided(partition: Partition) -> bool:
    """Whether it owns a range of keys and reads a table, not a view."""
    return partition.kind is PartitionKind.RANGE and partition.view is None
