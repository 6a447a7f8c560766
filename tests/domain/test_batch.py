"""What follows when partitions end, what a restart runs again, and how large chunks become."""

from __future__ import annotations

import json
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel, field_serializer, field_validator

from tasks_app.domain.batch.policies import (
    FIRST_ROWS,
    ChunkPace,
    CommitEvery,
    Move,
    after_compensation,
    after_partitions,
    parse_commit_every,
    parse_join,
    parse_on_abort,
    ready_steps,
    status_of_batch,
    steps_to_rerun,
)
from tasks_app.domain.batch.records import (
    BatchStatus,
    PartTally,
    StepStatus,
    checked_params,
    figures_of,
    identity,
    progress_bar,
)
from tasks_app.domain.errors import InvalidJobError, InvalidTaskError
from tasks_app.domain.partition.keys import KeyType
from tasks_app.domain.partition.records import Partition, RowCounts, Status, StoredPartition

HALF = ("quorum", 0.5)
UNDO = ("compensate", print)
TRY = ("retry_partition", 2)


@pytest.mark.parametrize(
    ("join", "on_abort", "total", "completed", "failed", "rounds", "move"),
    [
        ("all", "fail_fast", 4, 4, 0, 0, Move.COMPLETE),
        ("all", "fail_fast", 4, 2, 1, 0, Move.FAIL),
        ("all", "continue", 4, 3, 1, 0, Move.FAIL),
        ("all", "continue", 4, 3, 0, 0, Move.FAIL),  # one was cancelled
        ("all", TRY, 4, 3, 1, 0, Move.AGAIN),
        ("all", TRY, 4, 3, 1, 1, Move.AGAIN),
        ("all", TRY, 4, 3, 1, 2, Move.FAIL),
        ("all", TRY, 4, 4, 0, 1, Move.COMPLETE),
        ("all", UNDO, 4, 3, 1, 0, Move.COMPENSATE),
        ("any", "continue", 4, 1, 0, 0, Move.COMPLETE),
        ("any", "continue", 4, 1, 3, 0, Move.COMPLETE),
        ("any", "fail_fast", 4, 1, 1, 0, Move.COMPLETE),
        ("any", TRY, 4, 1, 1, 0, Move.COMPLETE),
        ("any", TRY, 4, 0, 4, 0, Move.AGAIN),
        ("any", "continue", 4, 0, 4, 0, Move.FAIL),
        (HALF, "continue", 4, 2, 2, 0, Move.COMPLETE),
        (HALF, "continue", 4, 1, 3, 0, Move.FAIL),
        (HALF, "continue", 3, 2, 1, 0, Move.COMPLETE),
        (HALF, "continue", 3, 1, 2, 0, Move.FAIL),
        (HALF, "fail_fast", 4, 3, 1, 0, Move.FAIL),
        (HALF, TRY, 4, 3, 1, 0, Move.AGAIN),
        (HALF, TRY, 4, 3, 1, 2, Move.COMPLETE),
        (("quorum", 0.1), "continue", 10, 1, 9, 0, Move.COMPLETE),  # not 1.0000000000000002
        ("best_effort", "continue", 4, 0, 4, 0, Move.COMPLETE),
        ("best_effort", TRY, 4, 3, 1, 0, Move.AGAIN),
        ("all", "fail_fast", 0, 0, 0, 0, Move.COMPLETE),
        ("any", "continue", 0, 0, 0, 0, Move.COMPLETE),
    ],
)
def test_what_follows_when_partitions_have_ended(
    join: str, on_abort: str, total: int, completed: int, failed: int, rounds: int, move: Move
) -> None:
    tally = PartTally(total, completed, failed)

    def follows(*, stopping: bool = False, reduces: bool = False) -> Move:
        policies = parse_join(join), parse_on_abort(on_abort)
        return after_partitions(tally, *policies, rounds=rounds, stopping=stopping, reduces=reduces)

    assert follows() is move
    assert follows(reduces=True) is (Move.REDUCE if move is Move.COMPLETE else move)
    assert follows(stopping=True) is (Move.COMPLETE if completed == total else Move.STOP)
    assert follows(stopping=True, reduces=True) is Move.STOP


@pytest.mark.parametrize(
    ("join", "completed", "failed", "compensated", "move"),
    [
        ("all", 3, 0, 1, Move.FAIL),
        (HALF, 3, 0, 1, Move.COMPLETE),
        ("best_effort", 0, 0, 4, Move.COMPLETE),
        ("best_effort", 3, 1, 0, Move.FAIL),  # it could not be undone
    ],
)
def test_what_follows_when_failed_partitions_were_undone(
    join: str, completed: int, failed: int, compensated: int, move: Move
) -> None:
    tally = PartTally(4, completed, failed, 0, compensated)
    assert after_compensation(tally, parse_join(join), stopping=False, reduces=False) is move
    assert after_compensation(tally, parse_join(join), stopping=True, reduces=False) is Move.STOP


W, P, R, C, F, S = map(
    StepStatus, ("WAITING", "PLANNING", "RUNNING", "COMPLETED", "FAILED", "STOPPED")
)
DIAMOND = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


@pytest.mark.parametrize(
    ("statuses", "starts", "ended", "ended_when_stopping"),
    [
        ((W, W, W, W), ["a"], None, BatchStatus.STOPPED),
        ((C, W, W, W), ["b", "c"], None, BatchStatus.STOPPED),
        ((C, C, R, W), [], None, None),
        ((C, C, C, W), ["d"], None, BatchStatus.STOPPED),
        ((C, C, C, C), [], BatchStatus.COMPLETED, BatchStatus.COMPLETED),
        ((C, F, R, W), [], None, None),
        ((C, F, C, W), [], BatchStatus.FAILED, BatchStatus.FAILED),
        ((C, S, C, W), [], BatchStatus.STOPPED, BatchStatus.STOPPED),
        ((P, W, W, W), [], None, None),
    ],
)
def test_a_diamond_of_steps(
    statuses: tuple[StepStatus, ...],
    starts: list[str],
    ended: BatchStatus | None,
    ended_when_stopping: BatchStatus | None,
) -> None:
    known = dict(zip("abcd", statuses, strict=True))
    assert ready_steps(DIAMOND, known) == starts
    assert status_of_batch(known, stopping=True) is ended_when_stopping
    if not starts:
        assert status_of_batch(known, stopping=False) is ended


def test_a_restart_takes_up_all_that_is_not_complete() -> None:
    assert steps_to_rerun({"a": C, "b": F, "c": S, "d": W, "e": R}) == ["b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("word", "rows", "ms"),
    [
        *((500, 500, 1000), ("500", 500, 1000), ("500 rows", 500, 1000), ("1 row", 1, 1000)),
        *(("500 rows or 250ms", 500, 250), ("500, 2s", 500, 2000)),
        *(((500, "250ms"), 500, 250), ((500, 0.25), 500, 250)),
    ],
)
def test_bounds_of_a_chunk(word: object, rows: int, ms: int) -> None:
    bounds = parse_commit_every(word)  # type: ignore[arg-type]
    assert (bounds.rows, bounds.span.total_seconds() * 1000) == (rows, ms)


@pytest.mark.parametrize("word", [0, -1, True, "", "many", "5 rows or 0s", (5, "2h"), (5,), 10**7])
def test_bounds_that_cannot_be(word: object) -> None:
    with pytest.raises(ValueError, match="Use 1 to 1000000 rows"):
        parse_commit_every(word)  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["quorum", ("quorum", 0), ("quorum", 2), "most", ("all", 1)])
def test_joins_that_are_none(word: object) -> None:
    with pytest.raises(ValueError, match="is not a join policy"):
        parse_join(word)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "word", ["compensate", ("compensate", "x"), ("retry_partition", 0), "die", ("continue", 1)]
)
def test_policies_of_aborts_that_are_none(word: object) -> None:
    with pytest.raises(ValueError, match="is not an abort policy"):
        parse_on_abort(word)  # type: ignore[arg-type]


def test_chunks_grow_to_what_fits_and_shrink_at_once() -> None:
    pace = ChunkPace(CommitEvery(2000))
    assert pace.size == FIRST_ROWS
    for rows, seconds, size in (
        *((100, 0.01, 400), (400, 0.04, 1600)),
        (1600, 0.16, 2000),  # no more than was said
        (2000, 4.0, 400),  # 0.8 s at 2 ms a row
        *((0, 9.0, 400), (400, 1000.0, 1)),
    ):
        pace.learn(rows, seconds)
        assert pace.size == size


class Month(BaseModel):
    month: str = Field(pattern=r"^\d{4}-\d\d$")
    dry: bool = False


def test_a_number_is_one_however_it_is_written() -> None:
    assert identity({"a": 1}) == identity({"a": 1.0})
    assert identity({"a": [{"b": -0.0}]}) == identity({"a": [{"b": 0}]})
    assert identity({"a": True}) != identity({"a": 1}) != identity({"a": 1.5})


class Part(BaseModel, frozen=True):
    at: datetime
    tags: frozenset[int] = frozenset()


class Every(BaseModel):
    """A parameter of each kind of which equal values can be written differently."""

    rate: Decimal = Field(alias="Rate")
    until: datetime
    daily: time
    share: float
    tags: set[int]
    parts: frozenset[Part]
    by_rate: dict[Decimal, list[datetime]]
    rows: list[tuple[Decimal, set[int]]]
    free: RootModel[list[Decimal | None]]


ZONES = [timezone(timedelta(hours=hours)) for hours in (-11, 0, 1, 14)]
NUMBER = st.decimals(-1000, 1000, places=2) | st.sampled_from(
    [Decimal(word) for word in ("0", "1e30", "1e-30", "12345678901234567890123456789.5")]
)
INSTANT = st.datetimes(
    datetime.fromisoformat("2000-01-02"),
    datetime.fromisoformat("2040-01-01"),
    timezones=st.sampled_from(ZONES),
)
TAGS = st.sets(st.sampled_from([0, 8, 16, 24]))  # one slot of a small set: their order tells it
PART = st.builds(Part, at=INSTANT, tags=TAGS)
EVERY = st.fixed_dictionaries(
    {
        "Rate": NUMBER,
        "until": INSTANT,
        "daily": st.times(timezones=st.sampled_from(ZONES)),
        "share": st.integers(-9, 9) | st.sampled_from([0.5, -0.0]),
        "tags": TAGS,
        "parts": st.frozensets(PART, max_size=3),
        "by_rate": st.dictionaries(NUMBER, st.lists(INSTANT, max_size=2), max_size=3),
        "rows": st.lists(st.tuples(NUMBER, TAGS), max_size=2),
        "free": st.lists(NUMBER | st.none(), max_size=3),
    }
)


def otherwise(value: Any) -> Any:
    """An equal value that is written otherwise."""
    match value:
        case Decimal():
            return Decimal(f"{value}" if "." in f"{value:f}" else f"{value:f}.") + Decimal("0E-40")
        case datetime():
            return value.astimezone(ZONES[value.minute % 4])
        case time():
            return value
        case Part():
            return Part(at=otherwise(value.at), tags=otherwise(value.tags))
        case dict():
            return {otherwise(k): otherwise(v) for k, v in reversed(value.items())}
        case list() | tuple():
            return [otherwise(each) for each in value]
        case set() | frozenset():
            return type(value)([otherwise(each) for each in value][::-1])
        case _:
            return float(value) if isinstance(value, int) else value


def identity_of(params: Any) -> str:
    """As a start computes it."""
    stored = json.dumps(checked_params("job", Every, params))
    return identity(Every.model_validate_json(stored))


@pytest.mark.test_all
@given(one=EVERY, other=EVERY)
@settings(deadline=None, max_examples=60)
def test_equal_parameters_are_one_instance_and_others_are_not(one: Any, other: Any) -> None:
    with localcontext(prec=100):
        same = identity_of(otherwise(one))
    assert identity_of(one) == identity_of(Every(**one)) == same
    assert (identity_of(one) == identity_of(other)) is (Every(**one) == Every(**other))


def test_equal_parameters_of_each_kind_are_one_instance() -> None:
    base = {
        "Rate": Decimal("1.5"),
        "until": datetime(2026, 11, 1, tzinfo=UTC),
        "daily": time(23, 30, tzinfo=UTC),
        "share": 1,
        "tags": [0, 8],
        "parts": [{"at": "2026-11-01T00:00:00Z", "tags": [0, 8]}, {"at": "2026-11-02T00:00:00Z"}],
        "by_rate": {"1.5": ["2026-11-01T00:00:00Z"]},
        "rows": [(100, [8, 0])],
        "free": ["1", None],
    }
    others = {
        "Rate": "1.50",
        "until": "2026-11-01T01:00:00+01:00",
        "daily": "22:30:00-01:00",
        "share": 1.0,
        "tags": [8, 0, 8],
        "parts": [{"at": "2026-11-02T02:00:00+02:00"}, {"at": base["until"], "tags": [8, 0]}],
        "by_rate": {"1.500": ["2026-10-31T23:00:00-01:00"]},
        "rows": [("1e2", [0, 8])],
        "free": ["1.0", None],
    }
    wrong = {
        "Rate": "1.51",
        "until": "2026-11-01T01:00:00Z",
        "daily": "22:30:00Z",
        "share": 2,
        "tags": [0],
        "parts": [],
        "by_rate": {},
        "rows": [(100, [8, 0])] * 2,
        "free": [None, "1"],
    }

    for name, other in others.items():
        assert identity_of(base | {name: other}) == identity_of(base), name
        assert identity_of(base | {name: wrong[name]}) != identity_of(base), name
    assert identity_of(base | others) == identity_of(base)


def test_the_order_of_parameters_does_not_matter() -> None:
    assert identity({"a": 1, "b": [2]}) == identity({"b": [2], "a": 1})
    assert identity({"a": 1}) != identity({"a": "1"})
    assert identity({"a": 1, "dry": True}, ["a"]) == identity({"a": 1, "dry": False}, ["a"])


def test_defaults_are_part_of_the_parameters() -> None:
    given = checked_params("payroll", Month, {"month": "2026-10"})
    assert given == {"month": "2026-10", "dry": False}
    assert given == checked_params("payroll", Month, Month(month="2026-10"))
    assert checked_params("payroll", None, None) == {}


def test_parameters_that_do_not_fit_are_named() -> None:
    with pytest.raises(InvalidJobError, match=r"params\.month of job payroll is refused"):
        checked_params("payroll", Month, {"month": "October"})
    with pytest.raises(InvalidTaskError, match=r"params\.at"):
        checked_params("payroll", None, {"at": object()})


class Pieces(BaseModel):
    """Written one way and read another."""

    n: int = 1

    @field_serializer("n")
    def in_words(self, n: int) -> str:
        return f"{n} pieces"


class Cents(BaseModel):
    """Read once more, it is another amount."""

    cents: int

    @field_validator("cents")
    @classmethod
    def from_euros(cls, value: int) -> int:
        return value * 100


def test_parameters_that_would_be_read_as_others_are_refused() -> None:
    with pytest.raises(InvalidJobError, match=r"^params.n of job pay is refused"):
        checked_params("pay", Pieces, {})
    with pytest.raises(InvalidTaskError, match=r"^params.cents is written in one way"):
        checked_params("pay", Cents, {"cents": 12})


def test_what_is_few_chunks_or_few_seconds_is_not_worth_dividing() -> None:
    pace = ChunkPace(CommitEvery(100, timedelta(seconds=1)))
    assert not pace.is_worth_dividing(1_000_000, 4.0)  # nobody knows yet what a row costs
    pace.learn(100, 0.5)
    assert pace.is_worth_dividing(800, 4.0)
    assert not pace.is_worth_dividing(799, 4.0)  # less than four seconds
    pace.learn(100, 5.0)
    assert pace.size == 16
    assert pace.is_worth_dividing(80, 4.0)
    pace.learn(16, 160.0)
    assert pace.size == 1
    assert not pace.is_worth_dividing(3, 4.0)  # less than four chunks


NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def part(number: int, rows: int | None, read: int, status: Status, **more: Any) -> StoredPartition:
    given: dict[str, Any] = {"started_at": NOON if read else None, "ended_at": None, **more}
    return StoredPartition(
        number, "p#1", Partition(number, rows=rows), KeyType.INTEGER, 1, "s", status, None,
        RowCounts(read, read), None, changed_at=NOON, error=None, **given,
    )  # fmt: skip


def test_a_step_that_runs() -> None:
    later = NOON + timedelta(seconds=10)
    parts = [part(1, 100, 100, Status.COMPLETED), part(2, 300, 100, Status.RUNNING)]
    figures = figures_of(parts, later)
    assert (figures.read, figures.rows, figures.per_second) == (200, 400, 20)
    assert figures.left == timedelta(seconds=10)
    assert figures.skew == 1.5
    assert progress_bar(figures.fraction, 10) == "#####....."


def test_what_a_complete_partition_read_counts_and_not_what_was_guessed() -> None:
    ended = NOON + timedelta(seconds=4)
    parts = [part(1, 1000, 40, Status.COMPLETED, ended_at=ended)]
    figures = figures_of(parts, NOON + timedelta(days=1))
    assert (figures.rows, figures.per_second, figures.fraction) == (40, 10, 1.0)


def test_nothing_is_known_of_what_nobody_counted() -> None:
    figures = figures_of([part(1, None, 0, Status.PLANNED)], NOON)
    assert (figures.rows, figures.per_second, figures.left, figures.skew) == (None,) * 4
    assert progress_bar(figures.fraction, 3) == "???"
    assert figures_of([], NOON).read == 0
