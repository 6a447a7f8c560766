"""The dispatcher: what goes out, what stays hidden, and what happens when nothing goes out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from tasks_app import NewTask, create_tasks
from tasks_app.domain.errors import PublishError
from tasks_app.pool.dispatch import ledger, run_times
from tasks_app.pool.dispatch.ledger import Dispatch
from tasks_app.runtime.dispatch.dispatcher import FRONT
from tasks_app.runtime.dispatch.queue_room import SPARE_MESSAGES
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.scan.result import ScanResult
from tests.clock import Clock
from tests.runtime.bench import Bench
from tests.runtime.dispatch.scene import Scene
from tests.runtime.memory import Memory

NOW = datetime.now(UTC)
CLAIM = """
    UPDATE task_pending SET state = 'RUNNING', attempt = 1, owner = 'w', started_at = now(),
        lease_token = gen_random_uuid(), lease_until = now() + interval '1 hour',
        max_attempts = 3, at_most_once = false
"""
PUT_OFF = """
    UPDATE task_pending
    SET due_at = now() + interval '1 day', scan_at = now() + interval '1 day'
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
    assert (scanned.published, scanned.more, scanned.skipped) == (4, False, False)


def test_nothing_goes_out_for_a_queue_that_no_live_worker_serves(scene: Scene) -> None:
    scene.worker(queue="other")
    scene.worker(queue="default", now=datetime.now(UTC) - scene.settings.lease * 2)
    scene.bench.create()

    scene.dispatcher.run_once()

    assert (scene.memory.messages, scene.bench.dispatches()) == ([], 0)


@pytest.mark.parametrize("queue", ["default", "*"])
def test_nothing_goes_out_for_a_paused_queue_not_even_again(
    scene: Scene, memory: Memory, queue: str
) -> None:
    scene.worker()
    first = scene.bench.create()
    scene.dispatcher.run_once()
    second = scene.bench.create()
    scene.bench.sql("INSERT INTO task_queue_pause VALUES (:queue)", queue=queue)
    memory.take()

    scene.bench.sql("UPDATE task_dispatch SET publish_at = statement_timestamp()")

    scene.dispatcher.run_once()
    assert memory.ids() == []

    scene.finish()
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


def test_the_ledger_row_is_committed_before_its_message_goes_out(scene: Scene) -> None:
    scene.worker()
    scene.bench.create()
    rows: list[int] = []
    publish = scene.memory.publish

    def look(messages: Sequence[Dispatch]) -> dict[int, PublishError]:
        rows.append(scene.bench.dispatches())
        return publish(messages)

    scene.memory.publish = look  # type: ignore[method-assign]

    scene.dispatcher.run_once()

    assert rows == [1]


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

    assert [len(ids) for _, _, ids in memory.messages] == [2] * room
    assert memory.ids() == ids[: 2 * room]
    assert (scanned.more, again.more, again.published) == (True, True, 0)


def test_the_ledger_holds_at_most_so_many_ids_per_queue(bench: Bench, memory: Memory) -> None:
    scene = Scene(bench, memory, ledger_ids=7)
    scene.worker()
    for _ in range(20):
        bench.create()

    scene.dispatcher.run_once()
    scene.dispatcher.run_once()

    assert len(memory.ids()) == 7


def test_a_finished_message_makes_room_and_shows_what_it_did_not_do(scene: Scene) -> None:
    scene.worker()
    task_id = scene.bench.create()
    scene.dispatcher.run_once()
    scene.memory.take()

    scene.finish()
    scene.dispatcher.run_once()

    assert scene.memory.ids() == [task_id]


def test_a_retried_task_is_visible_although_its_message_is_still_in_the_ledger(
    scene: Scene,
) -> None:
    """The ledger hides an id only while its scan_at is not after the message was made (H11)."""
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


def test_where_the_front_is_slow_to_read_some_passes_look_for_new_rows_only(
    bench: Bench, memory: Memory
) -> None:
    clock = SlowClock()
    scene = Scene(bench, memory, clock)
    scene.worker()
    for _ in range(2):  # one slow pass says nothing
        scene.dispatcher.run_once()
    late = bench.create(run_at=datetime.now(UTC) - timedelta(hours=1))  # as committed late
    new = bench.create()

    scene.dispatcher.run_once()
    assert memory.ids() == [new]
    clock.now += FRONT.longest_rest_s
    scene.dispatcher.run_once()
    assert memory.ids() == [new, late]


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
    def test_ledger_rows_are_taken_back_and_the_broker_is_asked_first(self, scene: Scene) -> None:
        scene.worker()
        task_id = scene.bench.create()
        scene.memory.refuse_after = 0

        for _ in range(2):
            with pytest.raises(PublishError):
                scene.dispatcher.run_once()

        assert (scene.bench.dispatches(), scene.memory.probes) == (0, 1)
        scene.memory.refuse_after = None
        scene.dispatcher.run_once()
        assert (scene.memory.ids(), scene.memory.probes) == ([task_id], 2)

    def test_what_went_out_before_the_failure_stays_in_the_ledger(
        self, bench: Bench, memory: Memory
    ) -> None:
        scene = Scene(bench, memory, message_size=1)
        scene.worker()
        ids = [bench.create() for _ in range(4)]
        memory.refuse_after = 2

        with pytest.raises(PublishError):
            scene.dispatcher.run_once()
        memory.refuse_after = None
        scene.dispatcher.run_once()

        assert memory.ids() == ids

    def test_messages_that_were_perhaps_sent_keep_their_rows(
        self, bench: Bench, memory: Memory
    ) -> None:
        scene = Scene(bench, memory, message_size=1)
        scene.worker()
        ids = [bench.create() for _ in range(3)]
        memory.refuse_after, memory.certain = 1, False

        with pytest.raises(PublishError):
            scene.dispatcher.run_once()

        kept = bench.sql("SELECT array_agg(ids[1] ORDER BY id) FROM task_dispatch")
        assert kept == ids

    def test_a_queue_that_the_broker_does_not_know_holds_up_no_other(
        self, bench: Bench, memory: Memory
    ) -> None:
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


class TestOverdue:
    def test_a_message_goes_out_again_under_its_id_and_waits_twice_as_long(
        self, scene: Scene
    ) -> None:
        scene.worker()
        task_id = scene.bench.create()
        scene.dispatcher.run_once()
        ((_, dispatch_id, _),) = scene.memory.messages
        scene.memory.take()
        start = scene.bench.sql("SELECT publish_at FROM task_dispatch") - timedelta(seconds=30)

        sent = []
        for seconds in (29, 31, 60, 90, 92, 210, 213):
            now = start + timedelta(seconds=seconds)
            scene.worker(now=now)
            scene.dispatcher.run_once(now=now)
            sent += [(seconds, d, ids) for _, d, ids in scene.memory.messages]
            scene.memory.take()

        assert sent == [(s, dispatch_id, (task_id,)) for s in (31, 92, 213)]
        assert scene.bench.dispatches() == 1

    def test_nothing_is_sent_again_while_no_worker_lives(self, scene: Scene) -> None:
        scene.worker()
        scene.bench.create()
        scene.dispatcher.run_once()
        scene.memory.take()
        weekend = datetime.now(UTC) + timedelta(days=2)

        scanned = scene.dispatcher.run_once(now=weekend)

        assert (scanned.republished, scene.memory.messages) == (0, [])


class TestABrokerThatForgot:
    """Its queue is empty, yet nobody has begun with what was sent."""

    @pytest.fixture
    def start(self, scene: Scene) -> datetime:
        """When one message went out, and was lost."""
        scene.worker()
        scene.bench.create()
        scene.dispatcher.run_once()
        scene.memory.take()
        return scene.bench.sql("SELECT created_at FROM task_dispatch")

    @staticmethod
    def sent(scene: Scene, start: datetime, *instants: float) -> list[float]:
        """Scan so many seconds after the start; return when something was sent."""
        sent = []
        for seconds in instants:
            now = start + timedelta(seconds=seconds)
            scene.worker(now=now)
            scene.dispatcher.run_once(now=now)
            sent += [seconds] * len(scene.memory.take())
        return sent

    def test_the_message_goes_out_again_after_a_tenth_of_the_time_and_its_doubles(
        self, scene: Scene, start: datetime
    ) -> None:
        scene.memory.depths["default"] = 0

        sent = self.sent(scene, start, 2.9, 3.1, 8.9, 9.2, 21.1, 21.3)

        assert sent == [3.1, 9.2, 21.3]
        assert scene.bench.dispatches() == 1

    @pytest.mark.parametrize("depth", [1, None])
    def test_it_waits_where_the_queue_is_not_empty_or_nobody_knows(
        self, scene: Scene, start: datetime, depth: int | None
    ) -> None:
        scene.memory.depths["default"] = depth

        assert self.sent(scene, start, 3.1, 29.9, 30.1) == [30.1]
        assert scene.memory.asked == ["default"] * 3

    @pytest.mark.parametrize("change", [CLAIM, PUT_OFF, "DELETE FROM task_pending"])
    def test_a_message_that_somebody_has_begun_with_is_in_good_hands(
        self, scene: Scene, start: datetime, change: str
    ) -> None:
        scene.memory.depths["default"] = 0
        scene.bench.sql(change)

        assert self.sent(scene, start, 3.1, 29.9) == []
        assert scene.memory.asked == []

    def test_a_broker_that_is_away_is_asked_once_in_a_pass(
        self, bench: Bench, memory: Memory
    ) -> None:
        scene = Scene(bench, memory)
        for queue in ("a", "b"):
            scene.worker(queue=queue)
            bench.create(queue=queue)
        scene.dispatcher.run_once()
        memory.depths = {"a": None, "b": 0}

        scene.dispatcher.run_once(now=datetime.now(UTC) + timedelta(seconds=5))

        assert memory.asked == ["a"]

    def test_a_message_that_is_worked_off_while_the_broker_is_asked_stays_away(
        self, scene: Scene, start: datetime
    ) -> None:
        """Interleaving: it stalls; a child takes it; the broker says 0; the scan goes on."""

        def take(_queue: str) -> int:
            scene.bench.sql("DELETE FROM task_pending")
            return 0

        scene.memory.depth = take  # type: ignore[method-assign]

        assert self.sent(scene, start, 3.1) == []


class TestTwoDispatchers:
    def test_one_id_goes_out_once(self, bench: Bench, memory: Memory) -> None:
        scenes = [Scene(bench, memory, message_size=5) for _ in range(4)]
        scenes[0].worker(children=20)
        ids = [bench.create() for _ in range(100)]
        together = threading.Barrier(4)

        def scan(scene: Scene) -> None:
            for _ in range(5):
                together.wait(10)
                scene.dispatcher.run_once()

        for thread in [bench.beside(scan, scene) for scene in scenes]:
            thread.join(20)

        assert sorted(memory.ids()) == ids

    def test_who_comes_second_steps_back(self, scene: Scene) -> None:
        scene.worker()
        scene.bench.create()
        with scene.bench.engine.begin() as connection:
            assert ledger.scanner_lock(connection)

            assert scene.dispatcher.run_once().skipped

        assert not scene.dispatcher.run_once().skipped


class TestTheSizeOfMessages:
    """As many as a child carries out in 0.4 s, by what the children learned of each name."""

    @staticmethod
    def sizes(scene: Scene, *names: str, **paces: float) -> list[int]:
        scene.worker(*set(names))
        with scene.bench.engine.begin() as connection:
            run_times.learn(connection, paces)
        ids = [scene.bench.create(name) for name in names]

        scene.dispatcher.run_once()

        assert scene.memory.ids() == ids[: len(scene.memory.ids())]
        return [len(ids) for _, _, ids in scene.memory.messages]

    def test_fast_tasks_go_together_spread_over_the_children(self, scene: Scene) -> None:
        assert self.sizes(scene, *["fast"] * 60, fast=0.001) == [10] * 6

    def test_a_slow_task_goes_alone_and_nothing_waits_behind_it(self, scene: Scene) -> None:
        names = ["fast", "fast", "slow", "fast", "slow", "slow"]
        assert self.sizes(scene, *names, fast=0.001, slow=3.0) == [1] * 6

    def test_it_cuts_what_runs_before_a_slow_one(self, bench: Bench, memory: Memory) -> None:
        scene = Scene(bench, memory)
        scene.worker("fast", "slow", children=20)
        names = [*["fast"] * 50, "slow", *["fast"] * 50]
        assert 50 not in self.sizes(scene, *names, fast=0.001, slow=3.0)
        assert (bench.sql("SELECT min(cardinality(ids)) FROM task_dispatch")) == 1

    def test_middling_ones_fill_four_tenths_of_a_second(self, scene: Scene) -> None:
        assert self.sizes(scene, *["m"] * 60, m=0.05) == [8] * 6

    def test_unknown_ones_go_a_few_at_a_time(self, scene: Scene) -> None:
        assert self.sizes(scene, *["new"] * 90) == [10] * 6

    @pytest.mark.test_all
    def test_what_was_learned_meanwhile_counts(self, scene: Scene) -> None:
        self.sizes(scene, *["t"] * 300)
        with scene.bench.engine.begin() as connection:
            run_times.learn(connection, {"t": 0.001})
        scene.memory.take()
        scene.finish()

        scene.dispatcher.run_once()

        assert max(len(ids) for _, _, ids in scene.memory.messages) > 10


def test_fast_tasks_are_published_as_far_ahead_as_they_are_worked_off(
    bench: Bench, memory: Memory
) -> None:
    """Six messages of ten are gone within a tenth of a second: so 24 and more in the next 0.4 s.

    But while nothing is out, twice as many as before at once and not more.
    """
    clock = SimpleNamespace(now=100.0)
    scene = Scene(bench, memory, lambda: clock.now, message_size=10, ledger_ids=10_000)
    scene.worker("t")
    with bench.engine.begin() as connection:
        run_times.learn(connection, {"t": 0.001})
        create_tasks(connection, [NewTask("t")] * 5000)
    passes = []
    for _ in range(4):
        scanned = scene.dispatcher.run_once()
        passes.append((len(memory.messages), scanned.again_in(1.0)))
        memory.take()
        scene.finish()
        clock.now += 0.1

    assert passes == [(6, 0.05), (12, 0.05), (24, 0.05), (48, 0.05)]


def test_the_next_pass_comes_soon_while_work_moves_and_later_without_room() -> None:
    moving, done = ScanResult(published=9, more=True), ScanResult(published=9)
    full = [ScanResult(more=True, still=passes) for passes in range(7)]

    assert [scanned.again_in(1.0) for scanned in (moving, done)] == [0.05, 1.0]
    assert [scanned.again_in(1.0) for scanned in full] == [*[0.05] * 4, 0.1, 0.2, 0.25]
    assert moving.again_in(0.01) == 0.01


def test_what_there_was_no_room_for_is_not_forgotten_until_the_next_interval(
    scene: Scene,
) -> None:
    """All due rows are found, for the ids that are out were claimed meanwhile."""
    scene.worker("t")
    with scene.bench.engine.begin() as connection:
        run_times.learn(connection, {"t": 0.0001})
        create_tasks(connection, [NewTask("t")] * 5_000)
    first = scene.dispatcher.run_once()
    scene.bench.sql(f"{CLAIM} WHERE id IN (SELECT unnest(ids) FROM task_dispatch)")
    scene.bench.sql("DELETE FROM task_dispatch WHERE id = (SELECT min(id) FROM task_dispatch)")

    second = scene.dispatcher.run_once()

    assert first.published == 3_000
    assert second.published >= 500  # the more, the faster a message seemed to be worked off
    assert second.more


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


def test_a_pass_in_between_leaves_nothing_behind_that_there_was_no_room_for(
    scene: Scene,
) -> None:
    scene.worker("t")
    ids = [scene.bench.create() for _ in range(80)]

    rounds = 0
    while len(scene.memory.ids()) < len(ids) and rounds < 60:
        scene.dispatcher.run_once(fill_up=True)
        scene.finish()
        rounds += 1

    assert scene.memory.ids() == ids
    assert rounds > 1  # not all of them fitted into the first pass


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
