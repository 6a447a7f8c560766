"""What is wrong with a plan. A plan without problems gives every row exactly one owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from tasks_app.domain.partition.coverage import aligned, side_by_side
from tasks_app.domain.partition.keys import Key, KeyType, write_key
from tasks_app.domain.partition.problems import (
    MOST_SHOWN,
    Problem,
    Wrong,
    named,
    numbers,
)
from tasks_app.domain.partition.ranges import Range, quoted
from tasks_app.domain.partition.records import Extent, Facts, Partition, PartitionKind, Plan

LONGEST_KEY = 2_000
"""Bytes of a bound or value. Indexes hold 2,700; 8,000 of both bounds together."""
_ALIKE: dict[str, Callable[[Partition], object]] = {
    "kind": lambda each: each.kind,
    "column": lambda each: each.column,
    "modulus": lambda each: each.modulus,
    "source": lambda each: each.source is None,
}
"""What must be the same in all partitions of a plan."""


def check(plan: Plan, facts: Facts) -> list[Problem]:
    """Return all problems; ranges of wrong types are not compared with others."""
    problems = [*_count(plan, facts), *_kinds(plan), *_lengths(plan)]
    wrong = list(_types(plan, facts))
    if wrong or any(problem.kind is Wrong.MIXED for problem in problems):
        return [*problems, *wrong]
    for source in _sources(plan, facts):
        own = [each for each in plan.partitions if each.source == source]
        problems += _of_source(own, source, facts)
    return [*problems, *_values(plan, facts), *aligned(plan.partitions, facts.physical)]


def _count(plan: Plan, facts: Facts) -> Iterator[Problem]:
    is_empty = not any(each.has_keys or each.nulls for each in facts.extents.values())
    needed = max(facts.at_least, 0 if is_empty and facts.extents else 1)
    if len(plan.partitions) < needed:
        yield Problem(
            Wrong.TOO_FEW,
            f"There are {len(plan.partitions)} partitions, but {needed} are needed. "
            "Add some, or ask for fewer.",
        )
    for number, times in Counter(each.number for each in plan.partitions).items():
        if times > 1:
            twice = [each for each in plan.partitions if each.number == number]
            yield Problem(
                Wrong.DUPLICATE_NUMBER,
                f"{times} partitions have the number {number}: {named(twice)}. Number them apart.",
                (number,),
            )


def _kinds(plan: Plan) -> Iterator[Problem]:
    for what, of in _ALIKE.items():
        firsts = list({of(each): each for each in reversed(plan.partitions)}.values())
        if len(firsts) > 1:
            yield Problem(
                Wrong.MIXED,
                f"Partitions differ in their {what}: {named(firsts)}. Use one for all of them.",
                numbers(firsts),
            )


def _lengths(plan: Plan) -> Iterator[Problem]:
    for each in plan.partitions:
        keys = (*(each.range or Range()).bounds, *each.values)
        longest = max((len(write_key(key).encode()) for key in keys), default=0)
        if longest > LONGEST_KEY:
            yield Problem(
                Wrong.TOO_LONG,
                f"A key of {each} is {longest} characters long, which no index holds "
                f"(at most {LONGEST_KEY}). Split by hash, or by another column.",
                (each.number,),
            )


def _types(plan: Plan, facts: Facts) -> Iterator[Problem]:
    if plan.key_type is not facts.key_type:
        yield Problem(
            Wrong.WRONG_TYPE,
            f"The plan splits by {plan.key_type}, but the key is of type {facts.key_type}: "
            f"{named(plan.partitions)}. Write the bounds as {facts.key_type}.",
            numbers(plan.partitions),
        )
    for each in plan.partitions:
        of_range = plan.key_type if each.kind is PartitionKind.RANGE else KeyType.INTEGER
        bad = [
            *(key for key in (each.range or Range()).bounds if not of_range.admits(key)),
            *(key for key in each.values if not plan.key_type.admits(key)),
        ]
        if bad:
            wanted = plan.key_type if each.values else of_range
            yield Problem(
                Wrong.WRONG_TYPE,
                f"In partition {each.number} {' and '.join(map(quoted, bad))} "
                f"{'is' if len(bad) == 1 else 'are'} no {wanted}: {each}. "
                f"Write what is of type {wanted}.",
                (each.number,),
            )


def _sources(plan: Plan, facts: Facts) -> list[str | None]:
    found = {each.source for each in plan.partitions if each.kind is not PartitionKind.VALUES}
    return sorted({*found, *facts.extents}, key=lambda source: source or "")


def _of_source(own: list[Partition], source: str | None, facts: Facts) -> Iterator[Problem]:
    extent = facts.extents.get(source, Extent())
    if not own and extent != Extent():
        what = f"No partition covers {source or 'the keys'}. Add one for them."
        yield Problem(Wrong.SHORT, what)
        return
    if source is not None and source not in facts.extents:
        there = ", ".join(str(name) for name in facts.extents if name is not None)
        what = f"{named(own)}: there is no such source. There are: {there or 'none'}."
        yield Problem(Wrong.NO_SOURCE, what, numbers(own))
        return
    yield from _nulls(own, extent)
    if {each.kind for each in own} <= {
        PartitionKind.RANGE,
        PartitionKind.HASH,
        PartitionKind.SEGMENT,
    }:
        yield from side_by_side(own, _to_cover(own, extent))


def _to_cover(own: list[Partition], extent: Extent) -> Extent:
    """Return what the ranges must cover; for hashes all buckets, and what else a column holds."""
    moduli = [each.modulus for each in own if each.modulus is not None]
    if not moduli:
        return extent
    buckets = [key for key in (extent.least, extent.most) if isinstance(key, int)]
    return Extent(min(0, *buckets, 0), max(moduli[0] - 1, *buckets, 0))


def _nulls(own: list[Partition], extent: Extent) -> Iterator[Problem]:
    owners = [each for each in own if each.owns_null]
    if len(owners) > 1:
        yield Problem(
            Wrong.OVERLAP,
            f"Rows without a key belong to {named(owners)}. Let one of them own NULL.",
            numbers(owners),
        )
    if extent.nulls and any(each.kind is PartitionKind.MARKED for each in own):
        yield Problem(
            Wrong.UNOWNED, "There are rows without a key, which cannot be marked. Give them keys."
        )
    elif extent.nulls and not owners:
        yield Problem(
            Wrong.UNOWNED,
            "There are rows without a key, and no partition owns NULL. "
            "Set owns_null on one of them.",
        )


def _values(plan: Plan, facts: Facts) -> Iterator[Problem]:
    listed = [each for each in plan.partitions if each.kind is PartitionKind.VALUES]
    if not listed:
        return
    owners: dict[Key, list[Partition]] = {}
    for each in listed:
        for value in each.values:
            owners.setdefault(value, []).append(each)
    for value, several in owners.items():
        if len(several) > 1:
            yield Problem(
                Wrong.OVERLAP,
                f"{quoted(value)} belongs to {named(several)}. Leave it in one of them.",
                numbers(several),
            )
    extent = facts.extents.get(None, Extent())
    if extent.below or extent.above:
        yield Problem(
            Wrong.UNOWNED,
            "There are keys that cannot be listed, like infinity. Split by ranges or by hash.",
        )
    unowned = sorted(set(facts.values or ()) - set(owners), key=quoted)
    if unowned and facts.values is not None:
        rows = sum(facts.values[value] for value in unowned)
        shown = ", ".join(quoted(value) for value in unowned[:MOST_SHOWN])
        more = f" and {len(unowned) - MOST_SHOWN} more" if len(unowned) > MOST_SHOWN else ""
        yield Problem(
            Wrong.UNOWNED,
            f"No partition owns {shown}{more} ({rows} rows). "
            "List them somewhere, or say auto_assign.",
        )
