"""When a consumer is restarted, how often, and that Celery takes it for a lost connection."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery

from tasks_app.broker.worker import ConsumerWatch, SilentConsumerError
from tasks_app.domain.tasks.run import Run
from tasks_app.runtime.scoreboard import SLOTS_VARIABLE, Scoreboard
from tasks_app.runtime.worker.supervisor import STALE_S, starving


@pytest.fixture
def slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scoreboard:
    monkeypatch.setenv(SLOTS_VARIABLE, str(tmp_path / "slots"))
    return Scoreboard(tmp_path / "slots")


@pytest.fixture
def look(slots: Scoreboard):
    """One round of the timer; True: it raised what restarts the consumer."""
    timer = SimpleNamespace(call_repeatedly=lambda *_: None)
    consumer = SimpleNamespace(connection=object())
    worker = SimpleNamespace(hub=object(), timer=timer, consumer=consumer)
    step = ConsumerWatch(worker)
    step.start(worker)

    def once() -> bool:
        try:
            step.check_consumer(worker)
        except SilentConsumerError:
            return True
        return False

    once.step, once.consumer = step, consumer
    return once


@pytest.mark.parametrize("url", ["redis://", "amqp://"])
def test_celery_takes_it_for_a_lost_connection(url: str) -> None:
    with Celery(broker=url) as app:
        assert issubclass(SilentConsumerError, app.connection_for_read().connection_errors)


def test_only_when_all_children_starve(slots: Scoreboard, look) -> None:
    one, other = slots.take("one"), slots.take("other")
    assert not look()

    one.hunger(True)
    assert not look()
    other.hunger(True)
    other.message(in_hand=True)
    assert not look()
    other.message(in_hand=False)
    other.start(Run(1, 1), 60)
    assert not look()
    other.finish(Run(1, 1))

    assert look()


def test_never_while_it_stops_or_has_no_connection(slots: Scoreboard, look) -> None:
    slots.take("one").hunger(True)
    look.consumer.connection = None
    assert not look()
    look.consumer.connection = object()
    slots.drain()
    assert not look()


def test_what_a_child_said_long_ago_says_nothing(slots: Scoreboard, look) -> None:
    """Its standby is gone, or waits for a database that is away."""
    slots.take("one").hunger(True)

    assert look()
    assert not starving(slots, now=time.monotonic() + STALE_S)


def test_each_restart_in_vain_doubles_the_pause(slots: Scoreboard, look) -> None:
    child = slots.take("one")
    child.hunger(True)
    clock = SimpleNamespace(now=1000.0)
    look.step.clock = lambda: clock.now

    restarts = []
    for _ in range(400):
        if look():
            restarts.append(clock.now)
        clock.now += 1
        child.hunger(True)

    assert [b - a for a, b in itertools.pairwise(restarts)] == [30, 60, 120]
    child.hunger(False)
    clock.now += 1000
    assert not look()
    child.hunger(True)
    assert look()
    clock.now += 31
    assert look()
