"""Admission, circuit breakers, fair shares, windows of time."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.flow_control.admission import (
    EVERY,
    NEVER,
    Capacity,
    FairQueueKey,
    Shares,
    TokenBucket,
    Waiting,
    admit,
    capacity_of,
)
from tasks_app.domain.flow_control.circuit_breaker import (
    FIRST_RAMP,
    LONGEST_RAMP,
    Breaker,
    BreakerMode,
    BreakerState,
    StoredBreaker,
    check_breaker,
    failures_to_open,
    next_ramp,
    step_after_calls,
    step_after_wait,
)
from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit, Limits, limit_of
from tasks_app.domain.queues import Window, next_opening, parse_window

SECOND = timedelta(seconds=1)
TENANT = Gate(GateKind.KEY, "tenant:7")


@pytest.mark.parametrize("kind", GateKind)
def test_a_gates_text_can_be_read_again(kind: GateKind) -> None:
    gate = Gate(kind, "key of: two words")
    assert Gate.parse(str(gate)) == gate


def test_what_is_no_gate_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a gate"):
        Gate.parse("late")


def test_of_limit_keys_the_exact_one_wins_then_the_longest_beginning() -> None:
    every, tenants, seven = (Limit(GateKind.KEY, t, 1) for t in ("*", "tenant:*", "tenant:7"))
    assert Limits([every, tenants, seven]).of(TENANT) is seven
    assert Limits([every, tenants]).of(TENANT) is tenants
    assert Limits([tenants, every]).of(Gate(GateKind.KEY, "other")) is every
    assert Limits([tenants]).of(Gate(GateKind.KEY, "other")) is None


def test_a_star_means_itself_in_queues_and_names() -> None:
    assert Limits([Limit(GateKind.NAME, "*", 1)]).of(Gate(GateKind.NAME, "t")) is None


def test_a_task_stands_before_its_order_key_and_all_limits_that_are_set() -> None:
    limits = Limits([Limit(GateKind.NAME, "t", 1), Limit(GateKind.KEY, "tenant:*", 1)])
    assert limits.gates_of("q", "t", "o", "tenant:7") == (
        Gate(GateKind.ORDER, "o"),
        Gate(GateKind.NAME, "t"),
        TENANT,
    )
    assert limits.gates_of("q", "u", None, None) == ()


@pytest.mark.parametrize(
    ("left", "since_s", "holds"), [(None, 0, 5), (0, 0.1, 1), (0, 9, 5), (3, -1, 3), (4.5, 0.1, 5)]
)
def test_a_bucket_fills_with_time_up_to_its_burst(left, since_s: float, holds: float) -> None:
    limit = Limit(GateKind.KEY, "k", None, 10, SECOND, 5)
    assert limit.tokens(left, since_s) == pytest.approx(holds)


@pytest.mark.parametrize(
    ("limit", "running", "left", "free"),
    [
        (Limit(GateKind.KEY, "k", 3), 1, None, 2),
        (Limit(GateKind.KEY, "k", 3), 5, None, 0),
        (Limit(GateKind.KEY, "k", None, 10, SECOND, 5), 99, 2.9, 2.9),
        (Limit(GateKind.KEY, "k", 1, 10, SECOND, 5), 0, 2.9, 1),
        (Limit(GateKind.KEY, "k", 9, 10, SECOND, 5), 0, 0.9, 0.9),
        (None, 99, None, float("inf")),
    ],
)
def test_a_gate_has_room_for_what_both_limits_leave(limit, running, left, free) -> None:
    room = capacity_of(TENANT, limit, running, None, TokenBucket(left, 0.0, NEVER))
    assert room.open == free


def test_who_finds_room_at_all_of_its_gates_passes_in_the_order_given() -> None:
    a, b = Gate(GateKind.NAME, "a"), Gate(GateKind.QUEUE, "b")
    waiting = [
        *(Waiting(1, (a, b)), Waiting(2, (a, b)), Waiting(3, (b,)), Waiting(4, (a,))),
        Waiting(5, ()),
    ]
    admission = admit(waiting, {a: Capacity(2), b: Capacity(1)})
    assert admission.ids == [1, 4, 5]
    assert admission.held == {b: [2, 3]}


def test_a_weight_may_take_more_tokens_than_there_are_and_then_the_next_one_waits() -> None:
    name = Gate(GateKind.NAME, "a")
    rooms = {TENANT: Capacity(math.inf, tokens=150.0), name: Capacity(math.inf, tokens=3.0)}
    admission = admit([Waiting(n, (name, TENANT), None, 100) for n in range(4)], rooms)
    assert admission.ids == [0, 1]
    assert admission.held == {TENANT: [2, 3]}
    assert (rooms[TENANT].left, rooms[TENANT].open, rooms[name].left) == (-50, 0, 1)


def test_who_waits_for_a_gate_that_nobody_locked_is_left_out() -> None:
    admission = admit([Waiting(1, (TENANT,))], {})
    assert (admission.ids, admission.held) == ([], {})


def test_of_an_order_key_the_head_passes_alone() -> None:
    gate = Gate(GateKind.ORDER, "o")
    admission = admit(
        [Waiting(1, (gate,)), Waiting(2, (gate,))], {gate: Capacity(1, 2, ordered=True)}
    )
    assert admission.ids == [2]
    assert admission.held == {gate: [1]}
    assert capacity_of(gate, None, 1, 2, None).free == 0


@pytest.mark.parametrize(
    ("rate", "burst", "kept"),
    [("100/1m", None, 2), ("1/1h", None, 1), ("50/1s", None, 50), ("50/1s", 5, 5)],
)
def test_a_burst_is_what_a_second_brings_unless_it_is_given(rate, burst, kept: int) -> None:
    assert limit_of("queue", "q", None, rate, burst).burst == kept


@pytest.mark.parametrize("rate", ["", "10", "10/", "/1s", "0/1s", "x/1s", "10/0s", "10/900d", 10])
def test_a_rate_is_a_number_and_a_time(rate) -> None:
    with pytest.raises(InvalidTaskError, match="such as 100/1m"):
        limit_of("queue", "q", None, rate, None)


@pytest.mark.parametrize(("kind", "target"), [("order", "k"), ("queue", "a b"), ("key", "")])
def test_what_cannot_be_limited_is_refused(kind: str, target: str) -> None:
    with pytest.raises(InvalidTaskError):
        limit_of(kind, target, 1, None, None)


NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
BANK = Breaker("bank", ratio=0.5, least=4, probes=2)


def standing(state: BreakerState, good: int = 0, bad: int = 0, **given: object) -> StoredBreaker:
    values = {"mode": BreakerMode.AUTO, "since": NOON, "at": NOON, **given}
    return StoredBreaker(
        BANK, ["t"], state, look_at=None, good=good, bad=bad, let_through=0, let_at=None,
        reason="", **values,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "good", "bad", "goes_to"),
    [
        (BreakerState.CLOSED, 0, 3, None),
        (BreakerState.CLOSED, 2, 2, BreakerState.OPEN),
        (BreakerState.CLOSED, 3, 2, None),
        (BreakerState.RAMPING, 2, 2, BreakerState.OPEN),
        (BreakerState.PROBING, 1, 0, None),
        (BreakerState.PROBING, 2, 0, BreakerState.RAMPING),
        (BreakerState.PROBING, 5, 1, BreakerState.OPEN),
        (BreakerState.OPEN, 0, 99, None),
        (BreakerState.OPEN, 99, 0, None),
    ],
)
def test_outcomes(state: BreakerState, good: int, bad: int, goes_to: BreakerState | None) -> None:
    step = step_after_calls(standing(state, good, bad))
    assert (step and step.state) == goes_to


@pytest.mark.parametrize("mode", [BreakerMode.OPEN, BreakerMode.CLOSED])
@pytest.mark.parametrize("state", list(BreakerState))
def test_an_operators_word_outranks_all_outcomes(mode: BreakerMode, state: BreakerState) -> None:
    late = standing(state, 5, 99, mode=mode, at=NOON + timedelta(days=1))
    assert step_after_calls(late) is None
    assert step_after_wait(late) is None


def test_an_open_one_probes_when_its_time_is_over() -> None:
    early = standing(BreakerState.OPEN, at=NOON + timedelta(seconds=29))
    late = standing(BreakerState.OPEN, at=NOON + timedelta(seconds=30))
    assert step_after_wait(early) is None
    assert (step := step_after_wait(late)) is not None
    assert step.state is BreakerState.PROBING


def test_the_ramp_doubles_up_to_a_limit() -> None:
    rates = [next_ramp(0)]
    while rates[-1] < LONGEST_RAMP:
        rates.append(next_ramp(rates[-1]))
    assert rates[:3] == [FIRST_RAMP, 2 * FIRST_RAMP, 4 * FIRST_RAMP]
    assert rates[-1] == LONGEST_RAMP == next_ramp(LONGEST_RAMP)


@pytest.mark.parametrize(
    "wrong",
    [
        "a b", "", 7, Breaker("bank", ratio=0), Breaker("bank", ratio=1.1),
        Breaker("bank", least=0), Breaker("bank", probes=0),
        Breaker("bank", window=timedelta(0)), Breaker("bank", open_for=timedelta(days=2)),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"depends_on|bank"):
        check_breaker(wrong)


@pytest.mark.parametrize(("good", "bad"), [(0, 0), (0, 3), (3, 0), (100, 7), (1, 1)])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0])
def test_so_many_failures_open_it_and_one_less_does_not(good: int, bad: int, ratio: float) -> None:
    now = replace(standing(BreakerState.CLOSED, good, bad), breaker=replace(BANK, ratio=ratio))
    left = failures_to_open(now)
    if left == math.inf:
        assert step_after_calls(replace(now, bad=10**9)) is None
    else:
        assert step_after_calls(replace(now, bad=bad + math.ceil(left))) is not None
        assert step_after_calls(replace(now, bad=bad + math.ceil(left) - 1)) is None


def test_what_failures_cannot_open_has_none_left() -> None:
    assert failures_to_open(standing(BreakerState.OPEN, 0, 9)) == math.inf
    assert failures_to_open(standing(BreakerState.CLOSED, mode=BreakerMode.CLOSED)) == math.inf
    assert failures_to_open(standing(BreakerState.PROBING, 1)) == 1


def waiting(**keys: int | dict[int, int]) -> dict[FairQueueKey, list[int]]:
    """So many ids of each key, of priority 5 or of each priority; those of a line are in order."""
    lines: dict[FairQueueKey, list[int]] = {}
    first = 1
    for key, numbers in keys.items():
        for priority, number in ({5: numbers} if isinstance(numbers, int) else numbers).items():
            lines[FairQueueKey(key, priority)] = list(range(first, first + number))
            first += number
    return lines


def keys_of(shares: Shares, lines: dict[FairQueueKey, list[int]], most: int) -> list[str]:
    picks = shares.order(lines, most)
    shares.went(picks)
    for pick in picks:
        lines[pick.line].remove(pick.id)
    return [pick.line.key for pick in picks]


def test_keys_take_turns() -> None:
    assert "".join(keys_of(Shares(), waiting(a=9, b=9, c=9), 9)) == "abcabcabc"


def test_weights_are_shares_of_what_is_done() -> None:
    shares = Shares({"a": 3.0, "b": 0.5})
    went = Counter(keys_of(shares, waiting(a=1000, b=1000, c=1000), 900))
    assert went == {"a": 600, "b": 100, "c": 200}
    assert shares.share("a", ["a", "b", "c"]) == pytest.approx(600 / 900)


def test_what_one_leaves_the_others_have() -> None:
    """Work-conserving: nobody's share is kept for him while he has nothing to do."""
    assert Counter(keys_of(Shares({"a": 9.0}), waiting(a=5, b=100), 50)) == {"a": 5, "b": 45}


def test_who_was_idle_has_saved_nothing_up() -> None:
    shares = Shares()
    keys_of(shares, waiting(a=10_000), 1_000)
    assert Counter(keys_of(shares, waiting(a=100, b=100), 20)) == {"a": 10, "b": 10}


def test_a_new_key_does_not_wait_for_those_before_it() -> None:
    shares = Shares()
    lines = waiting(a=100_000)
    keys_of(shares, lines, 5_000)
    assert "b" in keys_of(shares, {**lines, FairQueueKey("b", 5): [10**6]}, 2)


@pytest.mark.parametrize("step", [1, 3, 100])
def test_shares_hold_however_few_go_at_a_time(step: int) -> None:
    shares, lines, went = Shares({"a": 2.0}), waiting(a=900, b=900), Counter[str]()
    for _ in range(0, 900, step):
        went.update(keys_of(shares, lines, step))
    assert abs(went["a"] - 2 * went["b"]) <= 3


def test_who_was_picked_and_did_not_go_is_not_charged() -> None:
    shares, lines = Shares(), waiting(a=100, b=100)
    first = shares.order(lines, 10)
    shares.went(first[:1])
    assert [pick.line.key for pick in shares.order(waiting(a=100, b=100), 3)] == ["b", "a", "b"]


def test_a_key_s_better_priority_goes_first() -> None:
    picks = Shares().order(waiting(a={0: 5, 9: 5}), 5)
    assert {pick.line.priority for pick in picks} == {0}


def test_a_priority_of_one_key_is_nothing_to_another_key() -> None:
    assert Counter(keys_of(Shares(), waiting(a={0: 100}, b={9: 100}), 20)) == {"a": 10, "b": 10}


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_the_lowest_priority_gets_its_floor(step: int) -> None:
    """All ten wait all the time: each of the nine behind the first has one of EVERY."""
    shares, went = Shares(), Counter[int]()
    lines = waiting(a=dict.fromkeys(range(10), 2_000))
    for _ in range(0, 1_000, step):
        picks = shares.order(lines, step)
        shares.went(picks)
        for pick in picks:
            lines[pick.line].remove(pick.id)
            went[pick.line.priority] += 1

    total = went.total()
    assert all(went[priority] >= total // EVERY - 1 for priority in range(1, 10))
    assert went[0] >= total * (1 - 9 / EVERY) - 1


def test_a_floor_is_of_what_its_key_gets() -> None:
    shares, lines = Shares(), waiting(a={0: 5_000, 9: 5_000}, b=5_000)
    picks = shares.order(lines, 2_000)
    went = Counter(pick.line for pick in picks)
    assert went[FairQueueKey("b", 5)] == 1_000
    assert went[FairQueueKey("a", 9)] == pytest.approx(1_000 / EVERY, abs=1)


def test_what_did_not_have_to_wait_is_owed_nothing() -> None:
    shares = Shares()
    shares.went(shares.order(waiting(a={0: 100}), 100))
    picks = shares.order(waiting(a={0: 100, 9: 100}), EVERY - 1)
    assert {pick.line.priority for pick in picks} == {0}


def test_not_every_key_that_ever_was_is_remembered() -> None:
    shares = Shares(remembered=10)
    for number in range(100):
        shares.went(shares.order({FairQueueKey(f"k{number}", 5): [number]}, 1))
    assert len(shares._had) <= 10


CHANGES = {
    "Europe/Berlin": (date(2026, 3, 29), date(2026, 10, 25)),
    "America/New_York": (date(2026, 3, 8), date(2026, 11, 1)),
    "Australia/Lord_Howe": (date(2026, 4, 5), date(2026, 10, 4)),
    "Asia/Beirut": (date(2026, 3, 29), date(2026, 10, 25)),
    "America/Santiago": (date(2026, 4, 5), date(2026, 9, 6)),
    "UTC": (date(2026, 3, 29), date(2026, 10, 25)),
}
"""The days of a year on which clocks are changed; in Beirut and Santiago at midnight."""


@pytest.mark.parametrize("zone", CHANGES)
def test_windows_on_the_days_when_clocks_are_changed(zone: str) -> None:
    for day in CHANGES[zone]:
        off = {day}
        for written in WRITTEN:
            window = in_zone(written, zone)
            for at in minutes_around(zone, day):
                expected = brute_force(written, zone, at, off)
                assert window.is_open(at, {"off": off}) == expected, (written, at)


@pytest.mark.parametrize("zone", CHANGES)
def test_the_next_opening_is_the_first_minute_that_is_open(zone: str) -> None:
    for day in CHANGES[zone]:
        off, minutes = {day}, minutes_around(zone, day)
        for written in WRITTEN:
            window = in_zone(written, zone)
            is_open = [brute_force(written, zone, at, off) for at in minutes]
            closed = [i for i, each in enumerate(is_open) if not each][::20]
            for i in closed:
                if True in is_open[i:]:
                    first = minutes[is_open.index(True, i)]
                    assert next_opening([window], {"off": off}, minutes[i]) == first


def test_of_several_windows_the_nearest_opens_whatever_its_zone() -> None:
    windows = [parse_window("09:00-10:00 Pacific/Kiritimati"), parse_window("09:00-10:00")]
    opens = next_opening(windows, {}, datetime(2026, 6, 1, 12, tzinfo=UTC))
    assert opens == datetime(2026, 6, 1, 19, tzinfo=UTC)


def test_a_window_on_days_that_are_all_holidays_never_opens() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    off = {now.date() + n * DAY for n in range(-9, 500)}
    assert next_opening([parse_window("01:00-02:00 not on off")], {"off": off}, now) is None


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("22:00-06:00", "22:00-06:00 UTC"),
        ("mon-fri 09:00-17:00 Europe/Berlin", "mon-fri 09:00-17:00 Europe/Berlin"),
        ("sat,sun  00:00-24:00", "sat-sun 00:00-24:00 UTC"),
        ("fri-mon 00:00-24:00", "mon,fri-sun 00:00-24:00 UTC"),
        ("00:00-24:00 not on de", "00:00-24:00 UTC not on de"),
        ("mon 22:00-06:00 Asia/Tokyo not on jp", "mon 22:00-06:00 Asia/Tokyo not on jp"),
    ],
)
def test_windows_are_read_and_written(text: str, written: str) -> None:
    assert str(parse_window(text)) == written
    assert parse_window(written) == parse_window(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "22-06", "22:00", "25:00-26:00", "22:60-23:00", "24:00-01:00", "22:00-24:01", None),
        *("mon-xyz 22:00-23:00", "mon-tue-wed 22:00-23:00", "22:00-23:00 Mars/Olympus"),
        *("22:00-23:00 not on", "22:00-23:00 not on a/b", "22:00-23:00 UTC and more"),
    ],
)
def test_what_is_no_window_is_refused(text: object) -> None:
    with pytest.raises(InvalidTaskError):
        parse_window(text)


MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
WRITTEN = (
    *("22:00-06:00", "02:15-02:45", "01:30-03:10", "00:00-24:00", "00:30-00:30", "23:00-00:00"),
    *("sat,sun 00:00-24:00", "sat 20:00-04:00", "sun 02:30-03:00", "mon-fri 22:00-06:00"),
    *("sun 00:00-01:00 not on off", "sat 23:30-02:30 not on off"),
)


def brute_force(written: str, zone: str, at: datetime, off: set[date]) -> bool:
    """Read the clock on the wall, and the window's text, as a person would."""
    words = written.split()
    times = next(word for word in words if ":" in word)
    days = words[0] if not words[0][0].isdigit() else "mon-sun"
    names = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    wanted = set()
    for part in days.split(","):
        first, _, last = part.partition("-")
        wanted |= set(names[names.index(first) : names.index(last or first) + 1])
    hands = at.astimezone(ZoneInfo(zone))
    shown, (opens, closes) = hands.strftime("%H:%M"), times.split("-")

    def counts(day: date) -> bool:
        return names[day.weekday()] in wanted and not ("not on" in written and day in off)

    if opens < closes:
        return opens <= shown < closes and counts(hands.date())
    since_today = shown >= opens and counts(hands.date())
    return since_today or (shown < closes and counts(hands.date() - DAY))


def minutes_around(zone: str, day: date) -> list[datetime]:
    """Every fifth minute of the day before, the day and the day after: all edges are among them."""
    start = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(UTC) - DAY
    return [start + number * MINUTE for number in range(0, 3 * 24 * 60, 5)]


def in_zone(written: str, zone: str) -> Window:
    head, _, tail = written.partition(" not on ")
    return parse_window(f"{head} {zone}" + (f" not on {tail}" if tail else ""))
