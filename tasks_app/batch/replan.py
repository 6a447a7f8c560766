"""Replan: what has not started is divided further, while the rest runs on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from sqlalchemy import Connection

from tasks_app.batch.planners.even import Even
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.cuts import ranges
from tasks_app.domain.partition.keys import KeyType
from tasks_app.domain.partition.ranges import Range
from tasks_app.domain.partition.records import Kind, Partition, Plan, Status
from tasks_app.pool.batch import browse, store
from tasks_app.pool.batch.predicate import predicate
from tasks_app.pool.batch.relation import Source, find, keys_of, source_of


def replan(
    connection: Connection,
    program: str,
    source: Source,
    into: Even,
    numbers: set[int] | None = None,
) -> dict[int, int]:
    """Divide the partitions of a program that have not started, or of them those ``numbers``.

    The new ones own the same keys together, and have numbers that none had before; ids by number
    are returned. A run that is about to start an old one finds it gone. In the caller's
    transaction, as all that is to be done with their tasks.

    Raises:
        PlanError: one of them is not a range of keys.
    """
    stored = {each.partition.number: each for each in browse.of_program(connection, program)}
    waiting = {n for n, each in stored.items() if each.status is Status.PLANNED}
    gone = store.remove(connection, program, only=sorted(waiting & (numbers or waiting)))
    made: list[Partition] = []
    for number in gone:
        old = stored[number]
        first = max(stored) + len(made) + 1
        made += divide(connection, source, old.partition, old.key_type, into, first)
    if not made:
        return {}
    one = stored[gone[0]]
    plan = Plan("replanned", one.key_type, tuple(made))
    return store.insert(connection, program, plan, batch_id=one.batch_id, step=one.step)


def divide(
    connection: Connection,
    source: Source,
    partition: Partition,
    key_type: KeyType,
    into: Even,
    first: int,
) -> list[Partition]:
    """Return partitions that own the same keys, evenly, numbered from ``first`` on.

    Raises:
        PlanError: it is not a range of keys.
    """
    span = partition.range
    if partition.kind is not Kind.RANGE or partition.view is not None:
        raise PlanError(
            f"{partition} cannot be divided, as only ranges of keys can. Plan the program anew."
        )
    if span is None:
        return [replace(partition, number=first)]
    relation = find(connection, source_of(source, partition))
    own = keys_of(source, relation, predicate(partition, relation.key, key_type))
    cuts, rows, _ = into.cut(connection, find(connection, own))
    made = ranges(cuts, rows, source=partition.source, first=first)
    bounds = [span.low, *(cut.key for cut in cuts), span.high]
    spans = [Range(low, high) for low, high in pairwise(bounds)]
    made = [replace(each, range=one) for each, one in zip(made, spans, strict=True)]
    return [replace(made[0], owns_null=partition.owns_null), *made[1:]]
