"""What is wrong with a plan. A plan without problems gives every row exactly one owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import Key, KeyType, Range, quoted_key, write_key
from tasks_app.domain.partition.records import (
    Extent,
    Facts,
    Partition,
    PartitionKind,
    PhysicalRange,
    Plan,
)

MOST_PARTITIONS_SHOWN = 20


class Fault(StrEnum):
    TOO_FEW = "too few"
    DUPLICATE_NUMBER = "duplicate number"
    WRONG_TYPE = "wrong type"
    MIXED = "mixed"
    TOO_LONG = "too long"
    REVERSED = "reversed"
    EMPTY = "empty"
    OVERLAP = "overlap"
    GAP = "gap"
    SHORT = "short coverage"
    UNOWNED = "unowned"
    SPANNING = "spanning"
    NO_SOURCE = "no such source"


class Problem(NamedTuple):
    kind: Fault
    message: str  # the ranges, and what to do
    numbers: tuple[int, ...] = ()  # of the partitions

    def __str__(self) -> str:
        return self.message


class WrongPlanError(PlanError):
    """A plan does not give every row exactly one owner; nothing was started."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        shown = [str(problem) for problem in problems[:MOST_PARTITIONS_SHOWN]]
        if (rest := len(problems) - MOST_PARTITIONS_SHOWN) > 0:
            shown.append(f"and {rest} more")
        super().__init__("\n- ".join(["The plan is wrong, nothing was started:", *shown]))
        self.problems: tuple[Problem, ...] = tuple(problems)


LONGEST_KEY = 2_000  # bytes of a bound or value; indexes hold 2,700, or 8,000 of both bounds
_UNIFORM: dict[str, Callable[[Partition], object]] = {  # the same in all partitions of a plan
    "kind": lambda each: each.kind,
    "column": lambda each: each.column,
    "modulus": lambda each: each.modulus,
    "source": lambda each: each.source is None,
}


def check_plan(plan: Plan, facts: Facts) -> list[Problem]:
    """Return all problems; ranges with bounds of a wrong type are not compared."""
    problems = [*_check_numbers(plan, facts), *_check_partitions(plan)]
    wrong = list(_check_types(plan, facts))
    if wrong or any(problem.kind is Fault.MIXED for problem in problems):
        return [*problems, *wrong]
    sources = {each.source for each in plan.partitions if each.kind is not PartitionKind.VALUES}
    for source in sorted(sources | facts.extents.keys(), key=lambda source: source or ""):
        own = [each for each in plan.partitions if each.source == source]
        problems += _check_source(own, source, facts)
    return [
        *problems,
        *_check_values(plan, facts),
        *check_alignment(plan.partitions, facts.physical),
    ]


def _check_numbers(plan: Plan, facts: Facts) -> Iterator[Problem]:
    is_empty = not any(each.has_keys or each.nulls for each in facts.extents.values())
    needed = max(facts.at_least, 0 if is_empty and facts.extents else 1)
    if len(plan.partitions) < needed:
        yield Problem(
            Fault.TOO_FEW,
            f"There are {len(plan.partitions)} partitions, but {needed} are needed. "
            "Add some, or ask for fewer.",
        )
    for number, times in Counter(each.number for each in plan.partitions).items():
        if times > 1:
            twice = [each for each in plan.partitions if each.number == number]
            yield Problem(
                Fault.DUPLICATE_NUMBER,
                f"{times} partitions have the number {number}: {named_partitions(twice)}. "
                "Give each its own number.",
                (number,),
            )


def _check_partitions(plan: Plan) -> Iterator[Problem]:
    for what, of in _UNIFORM.items():
        firsts = list({of(each): each for each in reversed(plan.partitions)}.values())
        if len(firsts) > 1:
            yield Problem(
                Fault.MIXED,
                f"Partitions differ in their {what}: {named_partitions(firsts)}. "
                "Use the same for all of them.",
                partition_numbers(firsts),
            )
    for each in plan.partitions:
        keys = (*(each.range or Range()).bounds, *each.values)
        longest = max((len(write_key(key).encode()) for key in keys), default=0)
        if longest > LONGEST_KEY:
            yield Problem(
                Fault.TOO_LONG,
                f"A key of {each} is {longest} characters long, which no index holds "
                f"(at most {LONGEST_KEY}). Split by hash, or by another column.",
                (each.number,),
            )


def _check_types(plan: Plan, facts: Facts) -> Iterator[Problem]:
    if plan.key_type is not facts.key_type:
        yield Problem(
            Fault.WRONG_TYPE,
            f"The plan splits by {plan.key_type}, but the key is of type {facts.key_type}: "
            f"{named_partitions(plan.partitions)}. Write the bounds as {facts.key_type}.",
            partition_numbers(plan.partitions),
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
                Fault.WRONG_TYPE,
                f"In partition {each.number} {' and '.join(map(quoted_key, bad))} "
                f"{'is' if len(bad) == 1 else 'are'} not of type {wanted}: {each}. "
                f"Write values of type {wanted}.",
                (each.number,),
            )


def _check_source(own: list[Partition], source: str | None, facts: Facts) -> Iterator[Problem]:
    extent = facts.extents.get(source, Extent())
    if not own and extent != Extent():
        yield Problem(Fault.SHORT, f"No partition covers {source or 'the keys'}. Add one for them.")
        return
    if source is not None and source not in facts.extents:
        known = ", ".join(str(name) for name in facts.extents if name is not None)
        what = f"{named_partitions(own)}: this source does not exist. Sources: {known or 'none'}."
        yield Problem(Fault.NO_SOURCE, what, partition_numbers(own))
        return
    yield from _check_nulls(own, extent)
    if {each.kind for each in own} & {PartitionKind.VALUES, PartitionKind.MARKED}:
        return
    moduli = [each.modulus for each in own if each.modulus is not None]
    if moduli:  # the ranges must cover all buckets, and all other numbers in the column
        buckets = [key for key in (extent.least, extent.most) if isinstance(key, int)]
        extent = Extent(min(0, *buckets, 0), max(moduli[0] - 1, *buckets, 0))
    yield from check_ranges(own, extent)


def _check_nulls(own: list[Partition], extent: Extent) -> Iterator[Problem]:
    owners = [each for each in own if each.owns_null]
    if len(owners) > 1:
        yield Problem(
            Fault.OVERLAP,
            f"Rows without a key belong to {named_partitions(owners)}. Let one of them own NULL.",
            partition_numbers(owners),
        )
    if extent.nulls and any(each.kind is PartitionKind.MARKED for each in own):
        yield Problem(
            Fault.UNOWNED,
            "There are rows without a key, which cannot be marked. Give them keys.",
        )
    elif extent.nulls and not owners:
        yield Problem(
            Fault.UNOWNED,
            "There are rows without a key, and no partition owns NULL. "
            "Set owns_null on one of them.",
        )


def _check_values(plan: Plan, facts: Facts) -> Iterator[Problem]:
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
                Fault.OVERLAP,
                f"{quoted_key(value)} belongs to {named_partitions(several)}. "
                "Leave it in one of them.",
                partition_numbers(several),
            )
    extent = facts.extents.get(None, Extent())
    if extent.below or extent.above:
        yield Problem(
            Fault.UNOWNED,
            "There are keys that cannot be listed, like infinity. Split by ranges or by hash.",
        )
    unowned = sorted(set(facts.values or ()) - set(owners), key=quoted_key)
    if unowned and facts.values is not None:
        rows = sum(facts.values[value] for value in unowned)
        yield Problem(
            Fault.UNOWNED,
            f"No partition owns {_listed(map(quoted_key, unowned))} ({rows} rows). "
            "List them in a partition, or set auto_assign.",
        )


Spans = list[tuple[Partition, Range]]


def check_ranges(own: Iterable[Partition], extent: Extent) -> Iterator[Problem]:
    """Yield the problems of the ranges of one source, which must cover ``extent``."""
    spans = [(each, each.range) for each in own if each.range is not None]
    for each, span in spans:
        if span.is_empty:
            what = f"{each} holds no key: it ends where it begins. Remove it, or move a bound."
            yield Problem(Fault.EMPTY, what, (each.number,))
        elif span.is_reversed:
            what = f"{each} is reversed: it ends before it begins. Exchange its bounds."
            yield Problem(Fault.REVERSED, what, (each.number,))
    good = [(each, span) for each, span in spans if not (span.is_reversed or span.is_empty)]
    good.sort(key=lambda pair: (pair[1].low is not None, pair[1].low))
    yield from _neighbours(good)
    yield from _coverage(good, extent)


def check_alignment(
    partitions: Iterable[Partition], physical: Iterable[PhysicalRange]
) -> Iterator[Problem]:
    for each in partitions:
        span = each.range
        if each.kind is not PartitionKind.RANGE or each.source is not None or span is None:
            continue
        met = [one for one in physical if one.range.overlaps(span)]
        if len({one.name for one in met}) > 1:
            bounds = ", ".join(f"{one.name} ({one.range})" for one in met[:MOST_PARTITIONS_SHOWN])
            yield Problem(
                Fault.SPANNING,
                f"{each} spans partitions of the database: {bounds}. Split it at their bounds.",
                (each.number,),
            )


def _neighbours(ordered: Spans) -> Iterator[Problem]:
    """Compare each range with the earlier one that has the highest end."""
    furthest: tuple[Partition, Range] | None = None
    for each, span in ordered:
        if furthest is not None:
            last, before = furthest
            if before.overlaps(span):
                end = before.high if _reaches_further(span, before) else span.high
                common = Range(span.low, end)
                yield Problem(
                    Fault.OVERLAP,
                    f"{last} and {each} overlap: {common} is in both. "
                    "Let one end where the other begins.",
                    (last.number, each.number),
                )
            elif before.high != span.low:
                yield Problem(
                    Fault.GAP,
                    f"There is a gap between {last} and {each}: no partition has "
                    f"{Range(before.high, span.low)}. Let one end where the other begins.",
                    (last.number, each.number),
                )
        if furthest is None or _reaches_further(span, furthest[1]):
            furthest = each, span


def _coverage(ordered: Spans, extent: Extent) -> Iterator[Problem]:
    least, most = extent.least, extent.most
    if not ordered:
        if extent.has_keys:
            what = "There are keys that no bound can name"
            if least is not None:
                what = f"Keys go from {_named(least, extent.below)} to {_named(most, extent.above)}"
            what += ", and no range has any of them. Add ranges that cover them."
            yield Problem(Fault.SHORT, what)
        return
    first, span = ordered[0]
    if span.low is not None and (extent.below or _less(least, span.low)):
        yield Problem(
            Fault.SHORT,
            f"The least key is {_named(least, extent.below)}, but {first} is the first: "
            f"no partition has {Range(least, span.low)}. Let it begin earlier, or without a bound.",
            (first.number,),
        )
    last, span = ordered[0]
    for each, other in ordered[1:]:
        if _reaches_further(other, span):
            last, span = each, other
    if span.high is not None and (extent.above or _less(span.high, most) or span.high == most):
        yield Problem(
            Fault.SHORT,
            f"The greatest key is {_named(most, extent.above)}, but {last} is the last: "
            f"no partition has {Range(span.high)}. Let it end later, or without a bound.",
            (last.number,),
        )


def _named(key: Any, beyond: bool) -> str:  # noqa: FBT001
    return "one that no bound can name" if beyond else quoted_key(key)


def _reaches_further(span: Range, than: Range) -> bool:
    if than.high is None:
        return False
    return span.high is None or _less(than.high, span.high)


def _less(one: Any, other: Any) -> bool:
    """Whether one is less than the other; None is not."""
    return one is not None and other is not None and bool(one < other)


def named_partitions(partitions: Iterable[Partition]) -> str:
    return _listed(map(str, partitions))


def _listed(words: Iterable[str]) -> str:
    shown = list(words)
    more = len(shown) - MOST_PARTITIONS_SHOWN
    return ", ".join(shown[:MOST_PARTITIONS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def partition_numbers(partitions: Iterable[Partition]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(each.number for each in partitions))
