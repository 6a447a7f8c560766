"""Delay look-ahead: what the leader's hints announce, and what is left to the scan."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from tasks_app.pool.dispatch.scan import find_upcoming
from tasks_app.runtime import hint_sender
from tasks_app.runtime.hints import HINTS
from tasks_app.runtime.leader import dispatcher
from tests.runtime.bench import Bench
from tests.runtime.dispatch.scene import Scene
from tests.runtime.hints.ear import Ear, told
from tests.runtime.memory import Memory
from tests.waiting import until

NOW = datetime.now(UTC)
REAL_S = 0.1
"""Hints come out by the real clock; so soon after the start of a pass a task is due in tests."""


class Clock:
    """It stands still: two passes estimate one instant alike on a slow machine, too."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def scene(bench: Bench, clock: Clock) -> Scene:
    scene = Scene(bench, Memory(), clock, scan_interval=1)
    scene.worker(now=NOW)
    return scene


def made(scene: Scene, due_in_s: float, **options: str) -> int:
    return scene.bench.create(run_at=NOW + timedelta(seconds=due_in_s), **options)


def test_what_is_due_before_the_pass_after_the_next_is_announced_once(
    scene: Scene, ear: Ear
) -> None:
    near = [made(scene, REAL_S), made(scene, REAL_S + 0.01)]
    made(scene, 1.6)
    made(scene, REAL_S, queue="nobodys")

    again = [scene.dispatcher.run_once(now=NOW).again_in(1.0) for _ in range(2)]

    until(lambda: len(told(ear)) == 2)
    assert ear.ids == near
    assert again == [1.0, 1.0]


def test_no_hint_is_early(scene: Scene, ear: Ear) -> None:
    began = time.monotonic()
    made(scene, REAL_S)

    scene.dispatcher.run_once(now=NOW)

    until(lambda: told(ear))
    assert ear.instants[0] >= began + REAL_S


def test_a_task_that_was_put_off_is_announced_anew(scene: Scene, ear: Ear) -> None:
    task_id = made(scene, REAL_S)
    scene.dispatcher.run_once(now=NOW)
    scene.bench.sql(
        "UPDATE task_pending SET due_at = due_at + interval '0.1 s',"
        " scan_at = scan_at + interval '0.1 s'"
    )

    scene.dispatcher.run_once(now=NOW)

    until(lambda: len(told(ear)) == 2)
    assert ear.ids == [task_id] * 2


def test_the_nearest_are_announced_when_there_are_many(
    scene: Scene, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "MOST", 2)
    ids = [made(scene, REAL_S + later_s) for later_s in (0.02, 0.0, 0.01)]

    scene.dispatcher.run_once(now=NOW)

    until(lambda: len(told(ear)) == 2)
    assert ear.ids == [ids[1], ids[2]]


def test_the_scan_need_not_wait_for_a_hint(scene: Scene, ear: Ear) -> None:
    made(scene, REAL_S)
    scene.dispatcher.run_once(now=NOW)

    later = NOW + timedelta(seconds=REAL_S)
    assert scene.dispatcher.run_once(now=later).published == 1


def test_the_scan_wakes_up_for_a_queue_that_gets_no_hints(
    scene: Scene, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hint_sender, "DEEP_SILENCE_S", 60.0)
    ear.depths = {"default": 1_000}
    made(scene, REAL_S)
    scene.dispatcher.run_once(now=NOW)
    until(lambda: not HINTS.takes("default"))
    made(scene, 0.4)

    assert scene.dispatcher.run_once(now=NOW).again_in(1.0) == pytest.approx(0.1)


def test_where_hints_are_off_the_scan_wakes_up_for_all(
    scene: Scene, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKS_APP_HINTS", "off")
    made(scene, 0.4)

    assert scene.dispatcher.run_once(now=NOW).again_in(1.0) == pytest.approx(0.4)
    assert told(ear) == []


def test_a_paused_queue_is_not_announced(scene: Scene, ear: Ear) -> None:
    made(scene, REAL_S)
    scene.bench.sql("INSERT INTO task_queue_pause VALUES ('default')")

    scene.dispatcher.run_once(now=NOW)

    with scene.bench.engine.connect() as connection:
        assert find_upcoming(connection, ["default"], timedelta(seconds=1), now=NOW) == []
    assert told(ear) == []
