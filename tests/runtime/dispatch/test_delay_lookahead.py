"""The outlook: what is entered in the delay index, and when the scan wakes up all the same."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from tasks_app.pool.dispatch.upcoming import Upcoming
from tasks_app.runtime.dispatch.dispatcher import Dispatcher
from tests.runtime.bench import Bench
from tests.runtime.dispatch.scene import Scene
from tests.runtime.memory import Memory

NOW = datetime.now(UTC)


class Index:
    """An index that remembers what it was told."""

    def __init__(self) -> None:
        self.entered: list[Upcoming] = []
        self.error: Exception | None = None
        self.pumped = True
        self.asked = 0

    def enter(self, tasks: Sequence[Upcoming]) -> bool:
        self.asked += 1
        if self.error is not None:
            raise self.error
        self.entered = list(tasks)
        return self.pumped


@pytest.fixture
def index() -> Index:
    return Index()


@pytest.fixture
def scene(bench: Bench, index: Index) -> Scene:
    scene = Scene(bench, Memory(), scan_interval=1)
    scene.dispatcher = Dispatcher(scene.settings, scene.database, scene.memory, index)
    scene.worker(now=NOW)
    return scene


def made(scene: Scene, due_in_s: float, queue: str = "default") -> int:
    return scene.bench.create(run_at=NOW + timedelta(seconds=due_in_s), queue=queue)


def test_what_is_near_is_entered_each_time_and_nobody_wakes_up_for_it(
    scene: Scene, index: Index
) -> None:
    near = [made(scene, 0.4), made(scene, 5.0), made(scene, 9.9)]
    made(scene, 10.1)
    made(scene, 0.0)
    made(scene, 1.0, queue="nobodys")

    again = [scene.dispatcher.run_once(now=NOW).again_in(1.0) for _ in range(2)]

    assert [task.id for task in index.entered] == near
    assert [task.due_in_s for task in index.entered] == pytest.approx([0.4, 5.0, 9.9])
    assert (index.asked, again) == (2, [1.0, 1.0])


def test_the_nearest_come_first_when_there_are_many(scene: Scene, index: Index) -> None:
    scene.dispatcher.lookahead.most = 2
    ids = [made(scene, due_in_s) for due_in_s in (3.0, 1.0, 2.0)]

    scene.dispatcher.run_once(now=NOW)

    assert [task.id for task in index.entered] == [ids[1], ids[2]]


def test_the_scan_wakes_up_for_what_nobody_pumps(scene: Scene, index: Index) -> None:
    index.pumped = False
    made(scene, 0.4)

    assert scene.dispatcher.run_once(now=NOW).again_in(1.0) == pytest.approx(0.4)


def test_an_index_that_fails_is_left_alone_for_a_while_and_the_scan_goes_on(
    scene: Scene, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.error = ConnectionError()
    due, _ = made(scene, 0.0), made(scene, 0.4)

    again = [scene.dispatcher.run_once(now=NOW).again_in(1.0) for _ in range(3)]

    assert again == pytest.approx([0.4] * 3)
    assert index.asked == 1
    assert scene.memory.ids() == [due]

    index.error = None
    scene.dispatcher.lookahead.not_before = 0.0
    scene.dispatcher.run_once(now=NOW)
    assert index.asked == 2
