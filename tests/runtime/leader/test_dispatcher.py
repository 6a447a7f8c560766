"""The dispatcher: what goes out, what is left out, and what happens when nothing goes out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tasks_app import NewTask, create_tasks
from tasks_app.domain.errors import PublishError
from tasks_app.pool.dispatch import scan
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.hint_sender import Message
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.leader import dispatcher
from tasks_app.runtime.leader.dispatcher import (
    FRONT,
    IN_HAND_S,
    KEPT_S,
    REACH,
    SPARE_MESSAGES,
    Dispatcher,
)
from tasks_app.runtime.scan import ScanResult
from tests.clock import Clock
from tests.runtime.bench import Bench
from tests.runtime.memory import Memory

NOW = datetime.now(UTC)
CLAIM = """
    UPDATE task_pending SET state = 'RUNNING', attempt = 1, owner = 'w', started_at = now(),
        lease_token = gen_random_uuid(), lease_until = now() + interval '1 hour',
        max_attempts = 3, at_most_once = false
"""


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def scene(bench: Bench, memory: Memory) -> Scene:
    return Scene(bench, memory)


def test_due_tasks_go_out_by_priority_then_age(scene: Scene) -> None:
    scene.worker()
    ids = [scene.bench.create(priority=p) for p in (5, 9, 0, 5)]
    scanned = scene.dispatcher.run_once()
    assert scene.memory.ids() == [ids[2], ids[0], ids[3], ids[1]]
    assert (scanned.published, scanned.more) == (4, False)


def test_nothing_goes_out_for_a_queue_that_no_live_worker_serves(scene: Scene) -> None:
    scene.worker(queue="other")
    scene.worker(queue="default", now=datetime.now(UTC) - scene.settings.lease * 2)
    scene.bench.create()
    scene.dispatcher.run_once()
    assert scene.memory.messages == []


@pytest.mark.parametrize("queue", ["default", "*"])
def test_a_paused_queue_gets_no_messages_again(scene: Scene, memory: Memory, queue: str) -> None:
    scene.worker()
    first = scene.bench.create()
    scene.dispatcher.run_once()
    second = scene.bench.create()
    scene.bench.sql("INSERT INTO task_queue_pause VALUES (:queue)", queue=queue)
    scene.finish()

    scene.dispatcher.run_once()
    assert memory.ids() == []

    scene.bench.sql("DELETE FROM task_queue_pause")
    scene.dispatcher.run_once()
    assert memory.ids() == [first, second]


def test_what_is_swept_is_told_when_it_is_committed(scene: Scene) -> None:
    told: list[tuple[str, str, str]] = []

    def look(notice: Notice) -> None:
        told.append((notice.kind, notice.name, scene.bench.state(notice.task_id)))

    HOOKS.subscribe(look)
    scene.bench.at_end(lambda: HOOKS.unsubscribe(look))
    scene.worker()
    scene.bench.create(enabled=False)
    scene.dispatcher.run_once()
    assert told == [("skipped", "t", "SKIPPED")]


def test_what_is_out_is_not_sent_again(scene: Scene) -> None:
    scene.worker()
    first = scene.bench.create()
    scene.dispatcher.run_once()
    second = scene.bench.create()
    scene.dispatcher.run_once()
    assert scene.memory.ids() == [first, second]


@pytest.mark.parametrize(("children", "threads"), [(1, 1), (3, 1), (1, 4)])
def test_the_room_is_two_messages_per_child_or_thread_and_some_to_spare(
    bench: Bench, memory: Memory, children: int, threads: int
) -> None:
    scene = Scene(bench, memory, message_size=2)
    scene.worker(children=children, threads=threads)
    ids = [bench.create() for _ in range(40)]
    room = 2 * children * threads + SPARE_MESSAGES
    scanned = scene.dispatcher.run_once()
    again = scene.dispatcher.run_once()
    assert memory.sizes == [2] * room
    assert memory.ids() == ids[: 2 * room]
    assert (scanned.more, again.more, again.published) == (True, True, 0)


def test_a_queues_ids_in_the_broker_are_few(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "MOST_AHEAD", 12)
    scene.worker()
    for _ in range(20):
        scene.bench.create()
    scene.dispatcher.run_once()
    scene.dispatcher.run_once()
    assert scene.memory.sizes == [2] * 6


def test_what_a_message_held_goes_out_again_when_it_should_be_over(scene: Scene) -> None:
    """A child has a moment for it; nobody asks whether it ended, was lost, or its child died."""
    scene.worker()
    task_id = scene.bench.create()
    scene.dispatcher.run_once()
    scene.memory.take()
    scene.dispatcher.run_once()
    at_once = scene.memory.take()
    scene.clock.now += IN_HAND_S
    scene.dispatcher.run_once()
    assert (at_once, scene.memory.ids()) == ([], [task_id])


def test_what_waits_in_the_broker_is_left_alone_for_longer(scene: Scene) -> None:
    scene.worker()
    scene.bench.create()
    scene.dispatcher.run_once()
    scene.clock.now += KEPT_S - 1
    scene.dispatcher.run_once()
    waiting = len(scene.memory.messages)
    scene.clock.now += 1
    scene.dispatcher.run_once()
    assert (waiting, len(scene.memory.messages)) == (1, 2)


def test_what_left_the_queue_first_is_forgotten_first(bench: Bench, memory: Memory) -> None:
    """Of five messages two are left, and a child has one: so the first two are over."""
    scene = Scene(bench, memory, message_size=1)
    scene.worker()
    ids = [bench.create() for _ in range(5)]
    scene.dispatcher.run_once()
    del memory.messages[:3]
    scene.clock.now += IN_HAND_S
    scene.dispatcher.run_once()
    assert memory.ids() == [*ids[3:], *ids[:2]]


def test_a_task_that_came_back_goes_out_though_published_a_moment_ago(scene: Scene) -> None:
    """An id is left out only while its row's scan_at is the same."""
    scene.worker()
    retried, waiting = scene.bench.create(), scene.bench.create()
    scene.dispatcher.run_once()
    scene.memory.take()
    scene.bench.sql(
        "UPDATE task_pending SET due_at = statement_timestamp(), scan_at = statement_timestamp(),"
        " attempt = 1, failures = 1 WHERE id = :id",
        id=retried,
    )

    scene.dispatcher.run_once()

    assert scene.memory.take() == [retried]
    scene.dispatcher.run_once()
    assert scene.memory.take() == []
    assert scene.bench.state(waiting) == "PENDING"


def test_a_row_that_commits_late_is_found_behind_higher_ids(scene: Scene) -> None:
    """Interleaving: A inserts 1; B inserts 2 and commits; scan; A commits; scan."""
    from tasks_app import create_task

    scene.worker()
    with scene.bench.engine.begin() as connection:
        early = create_task(connection, "t")
        late = scene.bench.create()
        scene.dispatcher.run_once()
        assert scene.memory.take() == [late]
    scene.dispatcher.run_once()
    assert scene.memory.take() == [early]


class SlowClock(Clock):
    """Two looks at it are two slow seconds apart."""

    def __call__(self) -> float:
        self.now += 2.0
        return self.now


def test_with_a_slow_front_some_passes_read_new_rows_only(bench: Bench, memory: Memory) -> None:
    clock = SlowClock()
    scene = Scene(bench, memory, clock)
    scene.worker()
    for _ in range(2):  # one slow pass says nothing
        scene.dispatcher.run_once()
    late = bench.create(run_at=datetime.now(UTC) - timedelta(hours=1))  # as committed late
    new = bench.create()

    scene.dispatcher.run_once()
    assert memory.take() == [new]
    bench.sql(f"{CLAIM} WHERE id = :id", id=new)
    clock.now += FRONT.longest_pause_s
    scene.dispatcher.run_once()
    assert memory.ids() == [late]


class TestWhatMustNotRun:
    def test_an_unknown_name_is_parked_with_a_reason_and_found_again(self, scene: Scene) -> None:
        scene.worker("t")
        task_id = scene.bench.create("new.name")
        scene.dispatcher.run_once()

        task = scene.bench.task(task_id)
        assert (scene.memory.ids(), task.state, task.failures) == ([], "PENDING", 0)
        assert "no live worker of this queue has a handler named new.name" in (task.parked or "")

        scene.worker("t", "new.name")
        scene.dispatcher.run_once()
        at_once = scene.memory.take()
        later = datetime.now(UTC) + scene.settings.park_for
        scene.worker("t", "new.name", now=later)
        scene.dispatcher.run_once(now=later)
        assert (at_once, scene.memory.take()) == ([], [task_id])

    def test_parked_rows_do_not_stand_in_the_way(self, bench: Bench, memory: Memory) -> None:
        scene = Scene(bench, memory, message_size=1)
        scene.worker("t")
        for _ in range(20):
            bench.create("unknown", priority=0)
        task_id = bench.create("t")
        for _ in range(5):
            scene.dispatcher.run_once()
        assert memory.ids() == [task_id]

    def test_disabled_tasks_are_skipped_and_late_ones_expire(self, scene: Scene) -> None:
        scene.worker()
        disabled = scene.bench.create(enabled=False)
        expired = scene.bench.create(expires_at=NOW - timedelta(seconds=1))
        not_due = scene.bench.create(enabled=False, delay="1h")
        scene.dispatcher.run_once()
        assert scene.bench.states([disabled, expired, not_due]) == [
            "SKIPPED", "EXPIRED", "PENDING",
        ]  # fmt: skip
        assert scene.memory.ids() == []


class TestABrokerThatIsAway:
    def test_it_is_asked_first_and_then_gets_all_that_is_due(self, scene: Scene) -> None:
        scene.worker()
        task_id = scene.bench.create()
        scene.memory.refuse_after = 0
        for _ in range(2):
            with pytest.raises(PublishError):
                scene.dispatcher.run_once()
        assert scene.memory.probes == 1
        scene.memory.refuse_after = None
        scene.dispatcher.run_once()
        assert (scene.memory.ids(), scene.memory.probes) == ([task_id], 2)

    def test_after_a_failure_all_goes_out_again(self, bench: Bench, memory: Memory) -> None:
        """Nobody knows what a broker has that failed; a copy claims nothing."""
        scene = Scene(bench, memory, message_size=1)
        scene.worker()
        ids = [bench.create() for _ in range(4)]
        memory.refuse_after = 2
        with pytest.raises(PublishError):
            scene.dispatcher.run_once()
        taken, memory.refuse_after = memory.take(), None
        scene.dispatcher.run_once(fill_up=True)
        assert (taken, memory.ids()) == (ids[:2], ids)

    def test_one_that_does_not_say_how_many_wait_gets_nothing(self, scene: Scene) -> None:
        scene.worker()
        scene.bench.create()
        scene.dispatcher.run_once()
        scene.memory.silent = True
        for _ in range(2):
            with pytest.raises(PublishError):
                scene.dispatcher.run_once()
        assert (len(scene.memory.messages), scene.memory.probes) == (1, 1)

    def test_it_is_asked_until_it_has_nothing_of_a_queue(self, scene: Scene) -> None:
        scene.worker(queue="a")
        scene.worker(queue="b")
        scene.bench.create(queue="a")
        for _ in range(2):
            scene.dispatcher.run_once()
        full = list(scene.memory.asked)
        scene.memory.take()
        for _ in range(3):
            scene.dispatcher.run_once()
        assert (full, scene.memory.asked[len(full) :]) == (["a", "b", "a"], ["a"])

    def test_what_it_already_has_leaves_no_room_for_a_new_leader(self, scene: Scene) -> None:
        scene.worker()
        scene.bench.create()
        scene.memory.publish([Message("default", [1])] * (2 + SPARE_MESSAGES))
        scanned = scene.dispatcher.run_once()
        assert (scanned.published, scanned.more) == (0, True)

    def test_a_queue_missing_in_the_broker_is_skipped(self, bench: Bench, memory: Memory) -> None:
        """Its worker is coming back, say: it makes the queue, and the next pass sends."""
        scene = Scene(bench, memory)
        scene.worker(queue="a")
        scene.worker(queue="b")
        first, second = bench.create(queue="a"), bench.create(queue="b")
        memory.missing = {"a"}

        scanned = scene.dispatcher.run_once()
        only = memory.take()
        memory.missing = set()
        scene.dispatcher.run_once()

        assert (only, memory.ids(), memory.probes) == ([second], [first], 0)
        assert scanned.published == 1


def test_a_second_dispatcher_publishes_what_the_first_one_did(bench: Bench, memory: Memory) -> None:
    """It does harm to nobody: the copies claim nothing."""
    first, second = Scene(bench, memory), Scene(bench, memory)
    first.worker()
    ids = [bench.create() for _ in range(3)]
    first.dispatcher.run_once()
    second.dispatcher.run_once()
    assert memory.ids() == [*ids, *ids]


class TestTheSizeOfMessages:
    """As many as a child carries out in 0.4 s, by what the children learned of each name."""

    @staticmethod
    def sizes(scene: Scene, *names: str, **paces: float) -> list[int]:
        scene.worker(*set(names))
        scene.bench.do(scan.write_run_times, paces)
        ids = [scene.bench.create(name) for name in names]
        scene.dispatcher.run_once()
        assert scene.memory.ids() == ids[: len(scene.memory.ids())]
        return scene.memory.sizes

    def test_fast_tasks_go_together_spread_over_the_children(self, scene: Scene) -> None:
        assert self.sizes(scene, *["fast"] * 60, fast=0.001) == [10] * 6

    def test_a_slow_task_goes_alone_and_nothing_waits_behind_it(self, scene: Scene) -> None:
        names = ["fast", "fast", "slow", "fast", "slow", "slow"]
        assert self.sizes(scene, *names, fast=0.001, slow=3.0) == [1] * 6

    def test_it_cuts_what_runs_before_a_slow_one(self, bench: Bench, memory: Memory) -> None:
        scene = Scene(bench, memory)
        scene.worker("fast", "slow", children=20)
        names = [*["fast"] * 50, "slow", *["fast"] * 50]
        sizes = self.sizes(scene, *names, fast=0.001, slow=3.0)
        assert (min(sizes), 50 in sizes) == (1, False)

    def test_middling_ones_fill_four_tenths_of_a_second(self, scene: Scene) -> None:
        assert self.sizes(scene, *["m"] * 60, m=0.05) == [8] * 6

    def test_unknown_ones_go_a_few_at_a_time(self, scene: Scene) -> None:
        assert self.sizes(scene, *["new"] * 90) == [2] * 6

    @pytest.mark.test_all
    def test_what_was_learned_meanwhile_counts(self, scene: Scene) -> None:
        self.sizes(scene, *["t"] * 300)
        scene.bench.do(scan.write_run_times, {"t": 0.001})
        scene.finish()
        scene.dispatcher.run_once()
        assert max(scene.memory.sizes) == 2 * REACH


def test_the_next_pass_comes_soon_while_work_moves_and_later_without_room() -> None:
    moving, done = ScanResult(published=9, more=True), ScanResult(published=9)
    full = ScanResult(more=True)
    assert [scanned.again_in(1.0) for scanned in (moving, done, full)] == [0.1, 1.0, 0.25]
    assert moving.again_in(0.01) == 0.0025
    assert full.again_in(60.0) == 0.25


def test_what_there_was_no_room_for_is_not_forgotten_until_the_next_interval(scene: Scene) -> None:
    """All due rows are found, for the ids that are out were claimed meanwhile."""
    scene.worker("t")
    with scene.bench.engine.begin() as connection:
        scan.write_run_times(connection, {"t": 0.0001})
        create_tasks(connection, [NewTask("t")] * 5_000)
    first = scene.dispatcher.run_once()
    scene.bench.sql(f"{CLAIM} WHERE id = ANY(:ids)", ids=scene.memory.ids())
    del scene.memory.messages[0]
    second = scene.dispatcher.run_once()
    assert (first.published, second.published, second.more) == (3_000, 500, True)


def test_a_pass_in_between_goes_on_where_the_last_one_ended(scene: Scene) -> None:
    """It finds what is more urgent; what came in behind its back waits for the next whole pass."""
    scene.worker("t")
    early = scene.bench.create(run_at=NOW - timedelta(hours=1), enabled=False)
    first = [scene.bench.create() for _ in range(3)]
    scene.dispatcher.run_once()
    behind = scene.bench.create()
    scene.bench.sql(
        "UPDATE task_pending SET due_at = :at, scan_at = :at WHERE id = :id",
        at=NOW - timedelta(hours=1), id=behind,
    )  # fmt: skip
    ahead, urgent = scene.bench.create(), scene.bench.create(priority=0)

    scene.dispatcher.run_once(fill_up=True)
    between = scene.memory.ids()
    scene.dispatcher.run_once()

    assert between == [*first, urgent, ahead]
    assert scene.memory.ids() == [*between, behind]
    assert scene.bench.state(early) == "SKIPPED"


def test_a_pass_in_between_leaves_nothing_behind_that_there_was_no_room_for(scene: Scene) -> None:
    scene.worker("t")
    ids = [scene.bench.create() for _ in range(80)]
    sent: list[int] = []
    rounds = 0
    while len(sent) < len(ids) and rounds < 60:
        scene.dispatcher.run_once(fill_up=True)
        sent += scene.finish()
        rounds += 1
    assert sent == ids
    assert rounds > 1  # not all of them fitted into the first pass


def test_a_pass_in_between_is_not_held_up_by_what_is_out(scene: Scene) -> None:
    scene.worker("t")
    ids = [scene.bench.create() for _ in range(90)]
    out: list[int] = []
    while len(out) < 60:
        scene.dispatcher.run_once(fill_up=True)
        out += scene.memory.take()
    urgent = [scene.bench.create(priority=0) for _ in range(12)]

    scene.dispatcher.run_once()
    assert scene.memory.take() == urgent
    scene.dispatcher.run_once(fill_up=True)

    assert scene.memory.take() == ids[60:72]


def test_the_next_pass_comes_when_the_next_row_is_due(bench: Bench, memory: Memory) -> None:
    scene = Scene(bench, memory, scan_interval=1)
    scene.worker(now=NOW)
    scene.bench.create(run_at=NOW + timedelta(seconds=0.03))
    later = scene.bench.create(run_at=NOW + timedelta(seconds=0.3))
    scene.bench.create(run_at=NOW + timedelta(seconds=5))

    first = scene.dispatcher.run_once(now=NOW)
    second = scene.dispatcher.run_once(now=NOW + timedelta(seconds=0.05))

    assert first.again_in(1.0) == 0.05  # not for each row of a crowd
    assert second.again_in(1.0) == pytest.approx(0.25)
    assert scene.dispatcher.run_once(now=NOW + timedelta(seconds=0.3)).again_in(1.0) == 1.0
    assert scene.memory.ids()[-1] == later


class Scene:
    """A dispatcher with its broker, and workers that are heartbeat rows."""

    def __init__(
        self,
        bench: Bench,
        memory: Memory,
        clock: Callable[[], float] | None = None,
        **settings: Any,
    ) -> None:
        self.clock = Clock()
        self.bench = bench
        self.memory = memory
        self.database = bench.database()
        self.settings = bench.settings(**settings)
        self.dispatcher = Dispatcher(
            self.settings, self.database, memory, clock=clock or self.clock
        )

    def worker(
        self,
        *names: str,
        queue: str = "default",
        children: int = 1,
        threads: int = 1,
        now: datetime | None = None,
    ) -> None:
        with self.bench.engine.begin() as connection:
            for number in range(children):
                heartbeats.write_heartbeat(
                    connection, owner=f"{queue} {number} {names}", node="n", queues=[queue],
                    handlers=names or ("t",), threads=threads, now=now,
                )  # fmt: skip

    def finish(self) -> list[int]:
        """Let all messages be over; return what they held."""
        self.clock.now += IN_HAND_S
        return self.memory.take()
