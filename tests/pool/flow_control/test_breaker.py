"""Breakers in the database: how they open, probe, ramp and close, whoever reports or looks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.circuit_breaker import (
    Breaker,
    BreakerMode,
    BreakerState,
    StoredBreaker,
)
from tasks_app.pool.dispatch.scan import check_idle, find_due
from tasks_app.pool.flow_control import circuit_breakers
from tasks_app.pool.flow_control.circuit_breakers import hold_tasks
from tasks_app.pool.runs.claim import claim, claim_next
from tasks_app.pool.tasks.cancel import cancel
from tests.factory import claimer, pending_task, row_of

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
BANK = Breaker("bank", least=4, probes=2)
CLAIMER = claimer("bank.pay", "t")


@pytest.fixture
def bank(connection: Connection) -> Connection:
    circuit_breakers.synchronise(connection, {BANK: ["bank.pay"]}, ["bank.pay", "t"])
    return connection


def standing(connection: Connection, now: datetime = NOON) -> StoredBreaker:
    (found,) = circuit_breakers.find_breakers(connection, now=now)
    return found


def opened(connection: Connection, now: datetime = NOON) -> None:
    circuit_breakers.report_calls(connection, "bank", 2, 2, now=now)
    assert standing(connection, now).state is BreakerState.OPEN


def pays(connection: Connection, number: int = 1, now: datetime = NOON) -> list[int]:
    return [pending_task(connection, "bank.pay", now=now) for _ in range(number)]


def taken(connection: Connection, ids: list[int], now: datetime = NOON) -> list[int]:
    return [t.task_id for _ in ids for t in claim(connection, ids, CLAIMER, uuid4(), now=now)]


def found_held(connection: Connection, now: datetime = NOON) -> list[int]:
    return sorted(
        i for found in find_due(connection, {"default": 1000}, now=now) for i in found.held
    )


def let(connection: Connection) -> list[int]:
    rows = connection.execute(
        text("SELECT id FROM task_pending WHERE parked LIKE 'let through%' ORDER BY id")
    )
    return list(rows.scalars())


class TestOpening:
    def test_a_failure_ratio_opens_it_when_there_are_enough_calls(self, bank: Connection) -> None:
        assert circuit_breakers.report_calls(bank, "bank", 0, 3, now=NOON) is None
        assert standing(bank).state is BreakerState.CLOSED
        step = circuit_breakers.report_calls(bank, "bank", 2, 0, now=NOON + SECOND)
        assert step is not None
        assert standing(bank, NOON + SECOND).state is BreakerState.OPEN
        assert standing(bank, NOON + SECOND).reason == "3 of 5 calls failed"

    def test_calls_fall_out_of_the_window(self, bank: Connection) -> None:
        circuit_breakers.report_calls(bank, "bank", 0, 3, now=NOON)
        assert circuit_breakers.report_calls(bank, "bank", 0, 3, now=NOON + 2 * MINUTE) is None
        assert standing(bank, NOON + 2 * MINUTE).bad == 3

    def test_more_good_calls_than_bad_ones_keep_it_closed(self, bank: Connection) -> None:
        assert circuit_breakers.report_calls(bank, "bank", 100, 99, now=NOON) is None

    def test_what_nobody_declared_is_not_counted(self, bank: Connection) -> None:
        assert circuit_breakers.report_calls(bank, "post", 0, 100, now=NOON) is None


class TestHolding:
    def test_its_tasks_are_not_claimed_and_others_are(self, bank: Connection) -> None:
        (pay,), other = pays(bank), pending_task(bank, now=NOON)
        opened(bank)
        assert taken(bank, [pay, other]) == [other]
        assert claim_next(bank, ["default"], 5, CLAIMER, uuid4(), now=NOON) == []
        assert row_of(bank, pay).failures == 0

    def test_they_are_put_aside_once_and_say_why(self, bank: Connection) -> None:
        ids = pays(bank, 3)
        opened(bank)
        assert found_held(bank) == ids
        assert hold_tasks(bank, ids, now=NOON) == 3
        assert found_held(bank) == []
        assert row_of(bank, ids[0]).parked == "held by breaker bank"
        assert standing(bank).held == 3
        assert check_idle(bank, now=NOON + SECOND).is_quiet(MINUTE)

    def test_a_closed_breaker_puts_nothing_aside(self, bank: Connection) -> None:
        assert hold_tasks(bank, pays(bank), now=NOON) == 0


class TestProbing:
    def test_as_many_as_declared_are_let_through_and_no_more(self, bank: Connection) -> None:
        ids = pays(bank, 5)
        opened(bank)
        hold_tasks(bank, ids, now=NOON)
        assert circuit_breakers.advance_due(bank, now=NOON + 29 * SECOND) == {}

        later = NOON + 30 * SECOND
        assert check_idle(bank, now=later).breakers
        assert circuit_breakers.advance_due(bank, now=later) == {"bank": 2}
        for more in range(1, 9):
            assert circuit_breakers.advance_due(bank, now=later + more * SECOND) == {"bank": 0}

        assert let(bank) == ids[:2]
        assert taken(bank, ids, later) == ids[:2]

    def test_a_failed_probe_opens_it_again(self, bank: Connection) -> None:
        ids = pays(bank, 5)
        opened(bank)
        hold_tasks(bank, ids, now=NOON)
        later = NOON + 30 * SECOND
        circuit_breakers.advance_due(bank, now=later)
        taken(bank, ids[:1], later)

        circuit_breakers.report_calls(bank, "bank", 0, 1, now=later)

        assert standing(bank, later).state is BreakerState.OPEN
        assert let(bank) == []
        assert taken(bank, ids, later) == []
        assert found_held(bank, later) == ids[1:2]

    def test_good_probes_ramp_it_up_and_close_it(self, bank: Connection) -> None:
        ids = pays(bank, 45)
        opened(bank)
        hold_tasks(bank, ids, now=NOON)
        at = NOON + 30 * SECOND
        circuit_breakers.advance_due(bank, now=at)
        assert taken(bank, ids, at) == ids[:2]

        circuit_breakers.report_calls(bank, "bank", 2, 0, now=at)
        assert standing(bank, at).state is BreakerState.RAMPING
        freed = []
        for _ in range(4):
            freed.append(circuit_breakers.advance_due(bank, now=at).get("bank", 0))
            at += SECOND

        assert freed == [10, 20, 13, 0]
        assert standing(bank, at).state is BreakerState.CLOSED
        assert standing(bank, at).look_at is None
        assert taken(bank, ids, at) == ids[2:]

    def test_failures_while_it_ramps_open_it_again(self, bank: Connection) -> None:
        ids = pays(bank, 40)
        opened(bank)
        hold_tasks(bank, ids, now=NOON)
        at = NOON + 30 * SECOND
        circuit_breakers.advance_due(bank, now=at)
        taken(bank, ids, at)
        circuit_breakers.report_calls(bank, "bank", 2, 0, now=at)
        circuit_breakers.advance_due(bank, now=at)

        circuit_breakers.report_calls(bank, "bank", 1, 9, now=at)

        assert standing(bank, at).state is BreakerState.OPEN
        assert let(bank) == []

    def test_lost_probes_are_given_up_and_others_tried(self, bank: Connection) -> None:
        ids = pays(bank, 5)
        opened(bank)
        hold_tasks(bank, ids, now=NOON)
        at = NOON + 30 * SECOND
        circuit_breakers.advance_due(bank, now=at)
        for task_id in ids[:2]:
            cancel(bank, task_id)

        circuit_breakers.advance_due(bank, now=at + 9 * SECOND)
        assert let(bank) == []
        circuit_breakers.advance_due(bank, now=at + 11 * SECOND)
        circuit_breakers.advance_due(bank, now=at + 12 * SECOND)

        assert let(bank) == ids[2:4]

    def test_probes_that_take_long_are_waited_for(self, bank: Connection) -> None:
        ids = pays(bank, 5)
        opened(bank)
        hold_tasks(bank, ids, now=NOON)
        at = NOON + 30 * SECOND
        circuit_breakers.advance_due(bank, now=at)
        assert taken(bank, ids, at) == ids[:2]
        assert circuit_breakers.advance_due(bank, now=at + 10 * MINUTE) == {"bank": 0}
        assert standing(bank, at).state is BreakerState.PROBING

    def test_a_task_that_comes_when_none_waited_is_the_probe(self, bank: Connection) -> None:
        opened(bank)
        at = NOON + 30 * SECOND
        assert circuit_breakers.advance_due(bank, now=at) == {"bank": 0}
        ids = pays(bank, now=at)
        assert hold_tasks(bank, found_held(bank, at), now=at) == 1
        assert circuit_breakers.advance_due(bank, now=at + SECOND) == {"bank": 1}
        assert taken(bank, ids, at + SECOND) == ids


class TestOperators:
    def test_open(self, bank: Connection) -> None:
        ids = pays(bank)
        assert circuit_breakers.override(bank, "bank", BreakerMode.OPEN, now=NOON)
        assert taken(bank, ids) == []
        circuit_breakers.report_calls(bank, "bank", 100, 0, now=NOON)
        assert circuit_breakers.advance_due(bank, now=NOON + 24 * 60 * MINUTE) == {}
        assert standing(bank).state is BreakerState.OPEN

    def test_close(self, bank: Connection) -> None:
        ids = pays(bank, 3)
        opened(bank)
        hold_tasks(bank, ids, now=NOON)
        circuit_breakers.override(bank, "bank", BreakerMode.CLOSED, now=NOON)
        assert circuit_breakers.advance_due(bank, now=NOON) == {"bank": 3}
        circuit_breakers.report_calls(bank, "bank", 0, 100, now=NOON)
        assert taken(bank, ids) == ids
        assert standing(bank).state is BreakerState.CLOSED

    def test_auto(self, bank: Connection) -> None:
        ids = pays(bank, 3)
        circuit_breakers.override(bank, "bank", BreakerMode.OPEN, now=NOON)
        hold_tasks(bank, ids, now=NOON)
        circuit_breakers.override(bank, "bank", BreakerMode.AUTO, now=NOON)
        assert circuit_breakers.advance_due(bank, now=NOON) == {"bank": 2}
        assert standing(bank).state is BreakerState.PROBING

    def test_no_such_breaker(self, bank: Connection) -> None:
        assert not circuit_breakers.override(bank, "post", BreakerMode.OPEN)


class TestDeclarations:
    def test_names_of_others_stay_and_ours_move(self, connection: Connection) -> None:
        circuit_breakers.synchronise(connection, {BANK: ["a", "b"]}, ["a", "b"])
        circuit_breakers.synchronise(connection, {BANK: ["c"]}, ["c", "d"])
        assert standing(connection).names == ["a", "b", "c"]
        circuit_breakers.synchronise(connection, {BANK: ["b"]}, ["a", "b"])
        assert standing(connection).names == ["b", "c"]
        circuit_breakers.synchronise(connection, {}, ["c", "d"])
        assert standing(connection).names == ["b"]

    def test_other_settings_replace_those_it_had_not_its_state(self, bank: Connection) -> None:
        opened(bank)
        circuit_breakers.synchronise(bank, {Breaker("bank", probes=7): ["bank.pay"]}, ["bank.pay"])
        assert standing(bank).breaker.probes == 7
        assert standing(bank).state is BreakerState.OPEN

    def test_nothing_is_written_where_all_is_as_it_should(self, bank: Connection) -> None:
        version = "SELECT CAST(CAST(xmin AS text) AS bigint), ctid FROM task_breaker"
        before = bank.execute(text(version)).one()
        circuit_breakers.synchronise(bank, {BANK: ["bank.pay"]}, ["bank.pay", "t"])
        assert bank.execute(text(version)).one() == before
