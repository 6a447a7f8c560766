"""Whether the ranges of one source lie side by side and cover all keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cmp_to_key
from typing import Any

from tasks_app.domain.partition.problems import MOST_SHOWN, Problem, Wrong
from tasks_app.domain.partition.ranges import Range, quoted
from tasks_app.domain.partition.records import Extent, Partition, PartitionKind, PhysicalRange

Spans = list[tuple[Partition, Range]]


def side_by_side(own: Iterable[Partition], extent: Extent) -> Iterator[Problem]:
    """Yield the problems of the ranges of one source; ``extent`` is what they must cover."""
    spans = [(each, each.range) for each in own if each.range is not None]
    for each, span in spans:
        if span.is_reversed or span.is_empty:
            yield _inverted(each, span)
    good = [(each, span) for each, span in spans if not (span.is_reversed or span.is_empty)]
    good.sort(key=cmp_to_key(_compare_lows))
    yield from _neighbours(good)
    yield from _coverage(good, extent)


def aligned(
    partitions: Iterable[Partition], physical: Iterable[PhysicalRange]
) -> Iterator[Problem]:
    """Yield the ranges that span two of the database's own partitions."""
    for each in partitions:
        span = each.range
        if each.kind is not PartitionKind.RANGE or each.source is not None or span is None:
            continue
        met = [one for one in physical if one.range.overlaps(span)]
        if len({one.name for one in met}) > 1:
            bounds = ", ".join(f"{one.name} ({one.range})" for one in met[:MOST_SHOWN])
            yield Problem(
                Wrong.SPANNING,
                f"{each} spans partitions of the database: {bounds}. Split it at their bounds.",
                (each.number,),
            )


def _inverted(each: Partition, span: Range) -> Problem:
    if span.is_empty:
        what = f"{each} holds no key: it ends where it begins. Remove it, or move a bound."
        return Problem(Wrong.EMPTY, what, (each.number,))
    what = f"{each} is reversed: it ends before it begins. Exchange its bounds."
    return Problem(Wrong.REVERSED, what, (each.number,))


def _neighbours(ordered: Spans) -> Iterator[Problem]:
    """Compare each with the one before it that reaches furthest."""
    furthest: tuple[Partition, Range] | None = None
    for each, span in ordered:
        if furthest is not None:
            last, before = furthest
            if before.overlaps(span):
                yield Problem(
                    Wrong.OVERLAP,
                    f"{last} and {each} overlap: {_common(before, span)} is in both. "
                    "Let one end where the other begins.",
                    (last.number, each.number),
                )
            elif before.high != span.low:
                yield Problem(
                    Wrong.GAP,
                    f"Between {last} and {each} is a gap: {Range(before.high, span.low)} is in "
                    "none. Let one end where the other begins.",
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
                ends = _named(least, extent.below), _named(most, extent.above)
                what = "Keys go from {} to {}".format(*ends)
            yield Problem(
                Wrong.SHORT, f"{what}, and no range has any of them. Add ranges that cover them."
            )
        return
    first, span = ordered[0]
    if span.low is not None and (extent.below or _less(least, span.low)):
        yield Problem(
            Wrong.SHORT,
            f"The least key is {_named(least, extent.below)}, but {first} is the first: "
            f"{Range(least, span.low)} is in none. Let it begin earlier, or without a bound.",
            (first.number,),
        )
    last, span = ordered[0]
    for each, other in ordered[1:]:
        if _reaches_further(other, span):
            last, span = each, other
    if span.high is not None and (extent.above or _less(span.high, most) or span.high == most):
        yield Problem(
            Wrong.SHORT,
            f"The greatest key is {_named(most, extent.above)}, but {last} is the last: "
            f"{Range(span.high)} is in none. Let it end later, or without a bound.",
            (last.number,),
        )


def _named(key: Any, beyond: bool) -> str:  # noqa: FBT001
    return "one that no bound can name" if beyond else quoted(key)


def _compare_lows(first: tuple[Partition, Range], second: tuple[Partition, Range]) -> int:
    one: Any = first[1].low
    other: Any = second[1].low
    if one is None or other is None:
        return (one is not None) - (other is not None)
    return int(one > other) - int(one < other)


def _reaches_further(span: Range, than: Range) -> bool:
    if than.high is None:
        return False
    return span.high is None or _less(than.high, span.high)


def _less(one: Any, other: Any) -> bool:
    """Whether one is less; None never is."""
    return one is not None and other is not None and bool(one < other)


def _common(one: Range, other: Range) -> Range:
    """Return what two ranges share; ``other`` begins later."""
    return Range(other.low, one.high if _reaches_further(other, one) else other.high)
