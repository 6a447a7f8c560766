"""Gates without a database: whose limit it is, how a bucket fills, who passes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.flow_control.admission import (
    NEVER,
    Capacity,
    TokenBucket,
    Waiting,
    admit,
    capacity_of,
)
from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit, Limits, limit_of

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
        (Limit(GateKind.KEY, "k", None, 10, SECOND, 5), 99, 2.9, 2),
        (Limit(GateKind.KEY, "k", 1, 10, SECOND, 5), 0, 2.9, 1),
        (Limit(GateKind.KEY, "k", 9, 10, SECOND, 5), 0, 0.9, 0),
        (None, 99, None, float("inf")),
    ],
)
def test_a_gate_has_room_for_what_both_limits_leave(limit, running, left, free) -> None:
    assert capacity_of(TENANT, limit, running, None, TokenBucket(left, 0.0, NEVER)).free == free


def test_who_finds_room_at_all_of_its_gates_passes_in_the_order_given() -> None:
    a, b = Gate(GateKind.NAME, "a"), Gate(GateKind.QUEUE, "b")
    waiting = [
        Waiting(1, (a, b)),
        Waiting(2, (a, b)),
        Waiting(3, (b,)),
        Waiting(4, (a,)),
        Waiting(5, ()),
    ]

    admission = admit(waiting, {a: Capacity(2), b: Capacity(1)})

    assert admission.ids == [1, 4, 5]
    assert admission.held == {b: [2, 3]}


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
