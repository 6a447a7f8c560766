"""Ranges are divided further; the old partition keeps the first keys, under its number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from sqlalchemy import Connection

from tasks_app.batch.planners.even import Even
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.cuts import ranges_of_cuts
from tasks_app.domain.partition.keys import KeyType, Range
from tasks_app.domain.partition.records import Partition, PartitionKind, Plan, StoredPartition
from tasks_app.pool.batch import partitions
from tasks_app.pool.batch import partitions as rows
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
    Their ids by number are returned. A run that is about to start an old one waits, and finds it
    smaller. All is in the caller's transaction, where tasks for the new ones must be made. Raises
    PlanError if one of them is not a range of keys.
    """
    waiting = rows.lock_waiting(connection, program, numbers)
    stored = {each.partition.number: each for each in partitions.of_program(connection, program)}
    made: dict[int, int] = {}
    for number in waiting:
        old = stored[number]
        pieces = divide(connection, source, old.partition, old.key_type, into)
        made |= share(connection, old, pieces, 1 + max([*stored, *made]))
    return made


def share(
    connection: Connection, old: StoredPartition, pieces: Sequence[Partition], first: int
) -> dict[int, int]:
    """Shorten a partition to the first piece; insert the others, numbered from ``first`` on."""
    kept, *others = pieces
    if not others:
        return {}
    rows.shorten_range(connection, old.id, kept, old.key_type)
    new = tuple(replace(each, number=first + place) for place, each in enumerate(others))
    plan = Plan("replanned", old.key_type, new)
    return partitions.insert(connection, old.program, plan, batch_id=old.batch_id, step=old.step)


def divide(
    connection: Connection, source: Source, partition: Partition, key_type: KeyType, into: Even
) -> list[Partition]:
    """Return partitions that own the same keys evenly, in the order of the keys.

    Raises PlanError if it is not a range of keys.
    """
    span = partition.range
    if not can_be_divided(partition):
        raise PlanError(
            f"{partition} cannot be divided, as only ranges of keys can. Plan the program anew."
        )
    if span is None:
        return [partition]
    own = keys_owned(connection, source, partition, key_type)
    cuts, number, _ = into.cut(connection, own)
    made = ranges_of_cuts(cuts, number, source=partition.source)
    bounds = [span.low, *(cut.key for cut in cuts), span.high]
    spans = [Range(low, high) for low, high in pairwise(bounds)]
    made = [replace(each, range=one) for each, one in zip(made, spans, strict=True)]
    return [replace(made[0], owns_null=partition.owns_null), *made[1:]]


def can_be_divided(partition: Partition) -> bool:
    """Whether it owns a range of keys and reads a table, not a view."""
    return partition.kind is PartitionKind.RANGE and partition.view is None
