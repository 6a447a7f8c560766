"""Partitions of a batch: checked, and read in order."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks_app.domain.partition.check import Fault, check_plan
from tasks_app.domain.partition.keys import (
    KeyType,
    Range,
    pack_keyset,
    ranges_between,
    unpack_keyset,
)
from tasks_app.domain.partition.records import (
    Extent,
    Facts,
    Partition,
    PartitionKind,
    PhysicalRange,
    Plan,
)


def plan_of(*partitions: Partition | tuple, key_type: KeyType = KeyType.INTEGER) -> Plan:
    """A plan; pairs are ranges."""
    made = (
        each if isinstance(each, Partition) else Partition(number, range=Range(*each))
        for number, each in enumerate(partitions, 1)
    )
    return Plan("test", key_type, tuple(made))


def facts_of(least: Any = 0, most: Any = 99, **facts: Any) -> Facts:
    extent = Extent(
        least, most, **{k: facts.pop(k) for k in ("nulls", "below", "above") if k in facts}
    )
    return Facts(facts.pop("key_type", KeyType.INTEGER), {None: extent}, **facts)


def only(plan: Plan, facts: Facts) -> tuple[str, str, tuple[int, ...]]:
    found = check_plan(plan, facts)
    assert len(found) == 1
    problem = found[0]
    return problem.kind, str(problem), problem.numbers


def test_what_is_right_has_no_problems() -> None:
    assert check_plan(plan_of((None, 10), (10, 20), (20, None)), facts_of()) == []
    assert check_plan(plan_of((20, 100), (0, 10), (10, 20)), facts_of()) == []
    assert check_plan(plan_of((5, 10)), facts_of(None, None)) == []


NAMED = Partition(1, range=Range(None, 5)), Partition(1, range=Range(5, None))
GAP = (
    "There is a gap between partition 1 (key < 10) and partition 2 (12 <= key): no partition has "
    "10 <= key < 12. Let one end where the other begins."
)
OVERLAP = (
    "partition 1 (key < 10) and partition 2 (8 <= key) overlap: 8 <= key < 10 is in both. "
    "Let one end where the other begins."
)
DATES = "splits by integer, but the key is of type date: partition 1 (every key)"


@pytest.mark.parametrize(
    ("partitions", "facts", "kind", "numbers", "said"),
    [
        (((None, 10), (12, None)), {}, Fault.GAP, (1, 2), GAP),
        (((None, 10), (8, None)), {}, Fault.OVERLAP, (1, 2), OVERLAP),
        (NAMED, {}, Fault.DUPLICATE_NUMBER, (1,), "partition 1 (key < 5), partition 1 (5 <= key)"),
        (((None, None),), {"key_type": KeyType.DATE}, Fault.WRONG_TYPE, (1,), DATES),
        (((None, None),), {"at_least": 4}, Fault.TOO_FEW, (), ""),
    ],
    ids=["a gap", "an overlap", "a number twice", "a plan of another type", "too few"],
)
def test_one_problem(
    partitions: tuple, facts: dict[str, Any], kind: Fault, numbers: tuple[int, ...], said: str
) -> None:
    found = only(plan_of(*partitions), facts_of(**facts))
    assert found[::2] == (kind, numbers)
    assert found[1] == said if said in (GAP, OVERLAP) else said in found[1]


def test_a_range_within_another_hides_no_gap() -> None:
    plan = plan_of((None, 50), (10, 20), (20, 30), (60, None))
    assert [(each.kind, each.numbers) for each in check_plan(plan, facts_of())] == [
        (Fault.OVERLAP, (1, 2)),
        (Fault.OVERLAP, (1, 3)),
        (Fault.GAP, (1, 4)),
    ]


def test_short_coverage_at_both_ends() -> None:
    first, last = check_plan(plan_of((1, 50), (50, 99)), facts_of())
    assert first.kind == last.kind == Fault.SHORT
    assert str(first).startswith(
        "The least key is 0, but partition 1 (1 <= key < 50) is the first: "
        "no partition has 0 <= key < 1."
    )
    assert str(last).startswith(
        "The greatest key is 99, but partition 2 (50 <= key < 99) is the last: "
        "no partition has 99 <= key"
    )


def test_keys_that_no_bound_can_name_need_a_range_without_one() -> None:
    kind, message, _ = only(plan_of((0, 100)), facts_of(above=True))
    assert kind is Fault.SHORT
    assert "one that no bound can name" in message
    assert check_plan(plan_of((0, None)), facts_of(above=True)) == []
    assert only(plan_of((0, 100)), facts_of(below=True))[0] is Fault.SHORT
    assert check_plan(plan_of((None, 100)), facts_of(below=True)) == []
    _, message, _ = only(plan_of(Partition(1, owns_null=True)), facts_of(None, None, above=True))
    assert message.startswith("There are keys that no bound can name, and no range has any")
    _, message, _ = only(plan_of(Partition(1, owns_null=True)), facts_of(1, 2, above=True))
    assert message.startswith("Keys go from 1 to one that no bound can name, and no range has")


def test_a_reversed_and_an_empty_range() -> None:
    reversed_, empty = check_plan(plan_of((None, 50), (50, None), (9, 3), (4, 4)), facts_of())
    assert (reversed_.kind, reversed_.numbers) == (Fault.REVERSED, (3,))
    assert str(reversed_).startswith("partition 3 (9 <= key < 3) is reversed")
    assert (empty.kind, empty.numbers) == (Fault.EMPTY, (4,))


@pytest.mark.parametrize(
    ("key_type", "bound"),
    [(KeyType.INTEGER, "7"), (KeyType.TEXT, 7), (KeyType.DATE, 7), (KeyType.UUID, "7")],
)
def test_a_bound_of_another_type(key_type: KeyType, bound: Any) -> None:
    plan = plan_of((None, bound), key_type=key_type)
    kind, message, numbers = only(plan, facts_of(key_type=key_type))
    assert (kind, numbers) == (Fault.WRONG_TYPE, (1,))
    assert f"is not of type {key_type}" in message
    assert "7" in message


def test_a_plan_of_nothing_is_too_short_and_too_few() -> None:
    assert {each.kind for each in check_plan(plan_of(), facts_of())} == {Fault.TOO_FEW, Fault.SHORT}


def test_rows_without_a_key_have_one_owner() -> None:
    own = Partition(2, owns_null=True)
    every = Partition(1, range=Range())
    assert only(plan_of(every), facts_of(nulls=True))[0] is Fault.UNOWNED
    assert check_plan(plan_of(every, own), facts_of(nulls=True)) == []
    both = plan_of(every, own, Partition(3, owns_null=True))
    assert only(both, facts_of())[::2] == (Fault.OVERLAP, (2, 3))


def test_values_that_nobody_or_two_own() -> None:
    plan = plan_of(
        Partition(1, PartitionKind.VALUES, values=("a", "b")),
        Partition(2, PartitionKind.VALUES, values=("b",)),
        key_type=KeyType.TEXT,
    )
    facts = Facts(KeyType.TEXT, {None: Extent()}, values={"a": 1, "c": 2, "d": 3})

    found = check_plan(plan, facts)

    assert [each.kind for each in found] == [Fault.OVERLAP, Fault.UNOWNED]
    twice, unowned = found
    assert (twice.kind, twice.numbers) == (Fault.OVERLAP, (1, 2))
    assert str(twice).startswith("'b' belongs to partition 1 ('a', 'b'), partition 2 ('b')")
    assert str(unowned).startswith("No partition owns 'c', 'd' (5 rows)")


def test_hashes_cover_their_modulus_and_agree_on_it() -> None:
    def hashed(number: int, bucket: int, modulus: int = 3) -> Partition:
        return Partition(number, PartitionKind.HASH, Range(bucket, bucket + 1), modulus=modulus)

    facts = Facts(KeyType.TEXT, {None: Extent()})
    text = KeyType.TEXT
    assert check_plan(plan_of(*(hashed(n, n) for n in range(3)), key_type=text), facts) == []
    missing = only(plan_of(hashed(1, 0), hashed(2, 1), key_type=text), facts)
    assert missing[0] is Fault.SHORT
    assert "partition 2 (1 <= hash % 3 < 2)" in missing[1]
    assert only(plan_of(hashed(1, 0), hashed(2, 1, 4), key_type=text), facts)[0] is Fault.MIXED


def test_bytes_of_a_file_are_covered() -> None:
    first = Partition(1, PartitionKind.SEGMENT, Range(0, 10), source="f")
    rest = Partition(2, PartitionKind.SEGMENT, Range(12, 20), source="f")
    facts = Facts(KeyType.INTEGER, {"f": Extent(0, 19)})
    kind, message, _ = only(plan_of(first, rest), facts)
    assert kind is Fault.GAP
    assert "partition 1 (0 <= byte < 10 of f)" in message


def test_a_partition_that_spans_two_of_the_database() -> None:
    physical = (
        PhysicalRange("t_2025", Range(date(2025, 1, 1), date(2026, 1, 1))),
        PhysicalRange("t_2026", Range(date(2026, 1, 1), date(2027, 1, 1))),
    )
    facts = Facts(KeyType.DATE, {None: Extent()}, physical=physical)
    july, new_year = date(2025, 7, 1), date(2026, 1, 1)

    kind, message, numbers = only(plan_of((None, july), (july, None), key_type=KeyType.DATE), facts)

    assert (kind, numbers) == (Fault.SPANNING, (2,))
    assert "partition 2 (2025-07-01 <= key) spans" in message
    assert "t_2025 (2025-01-01 <= key < 2026-01-01), t_2026 (2026-01-01" in message
    assert (
        check_plan(plan_of((None, new_year), (new_year, None), key_type=KeyType.DATE), facts) == []
    )


def test_a_source_without_a_partition() -> None:
    facts = Facts(KeyType.INTEGER, {"t_1": Extent(0, 1), "t_2": Extent(0, 1), "t_3": Extent()})
    kind, message, _ = only(plan_of(Partition(1, range=Range(), source="t_1")), facts)
    assert kind is Fault.SHORT
    assert "No partition covers t_2" in message


bounds = st.lists(st.one_of(st.none(), st.integers(-3, 8)), min_size=2, max_size=2)


@given(pairs=st.lists(bounds, min_size=1, max_size=4))
def test_a_plan_without_problems_owns_each_key_once_and_any_other_has_one(pairs: list) -> None:
    spans = [Range(*pair) for pair in pairs]
    extent = Extent(0, 5)
    problems = check_plan(plan_of(*pairs), Facts(KeyType.INTEGER, {None: extent}))
    owners = [sum(key in span for span in spans) for key in range(6)]
    if not problems:
        assert owners == [1] * 6
    if owners != [1] * 6:
        assert problems


@given(cuts=st.lists(st.integers(0, 20), unique=True).map(sorted))
def test_ranges_between_cuts_have_no_problems(cuts: list[int]) -> None:
    plan = plan_of(*((span.low, span.high) for span in ranges_between(cuts)))
    assert check_plan(plan, facts_of(0, 20)) == []


KEYS = [
    (5,),
    (-(2**63), "ä'\"\\"),
    (Decimal("1.1"), UUID(int=7)),
    (Decimal("-1234567890123456789012345678901234567890.5"),),
    (date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6, UTC), datetime(2026, 1, 2, 3)),  # noqa: DTZ001
    (time(1, 2, 3),),
]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_comes_back(key: tuple) -> None:
    again = unpack_keyset(json.loads(json.dumps(pack_keyset(key))))
    assert again == key
    assert [type(part) for part in again] == [type(part) for part in key]


@pytest.mark.parametrize(
    ("part", "why"), [(None, "null"), (True, "bool"), (b"x", "bytes"), (0.1, "floating point")]
)
def test_what_is_no_key(part: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        pack_keyset((1, part))
