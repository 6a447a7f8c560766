"""The reaper: killed processes, their slots, and who is charged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from tasks_app.domain.tasks.run import ClaimedTask, Run
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.claim import claim, claims_of
from tasks_app.pool.runs.leases import release
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.hooks import HOOKS, Notice, NoticeKind
from tasks_app.runtime.scoreboard import MOST_RUNS, Scoreboard, SlotView
from tasks_app.runtime.worker.reaper import Reaper
from tests.clock import until
from tests.factory import claimer, ending, succeed
from tests.runtime.bench import Bench
from tests.runtime.hints.ear import Ear, told
from tests.runtime.mortal import Mortal
from tests.statements import commit_unanswered, once_after

pytestmark = pytest.mark.test_all

Dead = Callable[..., None]


@pytest.fixture
def dead(bench: Bench) -> Dead:
    """Let a process own these claims, run ``others`` and the first so many, and be killed."""

    def die(
        ids: list[int], *, running: int = 1, others: int = 0, owner: str = "dead", **more: Any
    ) -> None:
        tasks = bench.do(claim, ids, claimer(owner=owner, **more), uuid4())
        runs = [*(Run(-n, 1) for n in range(1, 1 + others)), *(t.run for t in tasks[:running])]
        Mortal(bench.slots, owner, runs).kill()
        assert bench.states(ids) == ["RUNNING"] * len(ids)

    return die


def reaper(
    bench: Bench, database: Database | None = None, slots: Scoreboard | None = None
) -> Reaper:
    database = database or Database(bench.url)
    bench.at_end(database.dispose)
    return Reaper(database, slots or bench.slots, bench.registry, bench.settings())


def counts(bench: Bench, ids: list[int]) -> list[tuple[str, int, int]]:
    tasks = [bench.task(i) for i in ids]
    return [(task.state.value, task.failures, task.crashes) for task in tasks]


def test_only_the_task_that_ran_is_charged(bench: Bench, dead: Dead) -> None:
    bench.succeeding(retry="1h,1h")
    ids = [bench.create() for _ in range(10)]
    bench.do(heartbeats.write_heartbeat, owner="dead", node="n", queues=["default"], handlers=["t"])
    dead(ids, running=1)

    reaper(bench).reap_dead()

    assert counts(bench, ids) == [("PENDING", 1, 0)] + [("PENDING", 0, 0)] * 9
    (attempt,) = bench.attempts(ids[0])
    assert (attempt.kind, attempt.event) == ("process died", "retry")
    assert [bench.attempts(i) for i in ids[1:]] == [[]] * 9
    assert bench.sql("SELECT count(*) FROM task_worker") == 0
    assert bench.slots.occupied() == []


def test_a_second_thread_may_reap_the_same_child_meanwhile(bench: Bench, dead: Dead) -> None:
    """A child that drains asks for itself; its housekeeper does, too."""
    bench.succeeding(retry="1h")
    task_id = bench.create()
    dead([task_id])
    database = Database(bench.url)
    one = reaper(bench, database)
    open_meanwhile: list[int] = []

    def meanwhile() -> None:
        open_meanwhile.append(one.reap_dead())

    # When the row of the dead child has left the list, gates are asked for.
    with once_after(database.engine, "t.order_key, t.limit_key", meanwhile):
        assert one.reap_dead() == 0

    assert open_meanwhile == [0]

    assert counts(bench, [task_id]) == [("PENDING", 1, 0)]
    assert bench.slots.occupied() == []


def test_what_goes_back_is_hinted_at_before_a_scan(bench: Bench, dead: Dead, ear: Ear) -> None:
    """The one that ran, and its neighbours. What was not claimed is due: the scan finds it."""
    bench.succeeding(retry="0s,0s")
    claimed = [bench.create() for _ in range(3)]
    dead(claimed, running=1)
    reaper(bench).reap_dead()
    assert set(told(ear)) == {*claimed}


def test_the_charge_counts_towards_max_attempts(bench: Bench, dead: Dead) -> None:
    bench.succeeding(max_attempts=1)
    task_id = bench.create(max_attempts=1)
    dead([task_id])
    reaper(bench).reap_dead()
    assert counts(bench, [task_id]) == [("FAILED", 1, 0)]
    assert bench.error(task_id).startswith("process died")


def test_a_child_dead_before_any_start_is_a_crash_of_its_claims(bench: Bench, dead: Dead) -> None:
    ids = [bench.create() for _ in range(3)]
    dead(ids, running=0)
    reaper(bench).reap_dead()
    assert counts(bench, ids) == [("PENDING", 0, 1)] * 3


def test_of_several_that_ran_nobody_knows_who_it_was(bench: Bench, dead: Dead) -> None:
    ids = [bench.create() for _ in range(5)]
    dead(ids, running=3)
    reaper(bench).reap_dead()
    assert counts(bench, ids) == [("PENDING", 0, 1)] * 3 + [("PENDING", 0, 0)] * 2


def test_of_thousands_that_ran_each_was_on_board_and_no_other(bench: Bench, dead: Dead) -> None:
    ids = [bench.create() for _ in range(250)]
    dead(ids, running=200)
    reaper(bench).reap_dead()
    assert counts(bench, ids) == [("PENDING", 0, 1)] * 200 + [("PENDING", 0, 0)] * 50


def test_of_more_runs_than_are_listed_nobody_is_charged(bench: Bench, dead: Dead) -> None:
    ids = [bench.create() for _ in range(3)]
    dead(ids, running=2, others=MOST_RUNS - 1)
    reaper(bench).reap_dead()
    assert counts(bench, ids) == [("PENDING", 0, 1)] * 3


def test_at_most_once_is_never_run_again(bench: Bench, dead: Dead) -> None:
    task_id = bench.create()
    dead([task_id], at_most_once=True)
    reaper(bench).reap_dead()
    assert counts(bench, [task_id]) == [("FAILED", 1, 0)]
    assert bench.error(task_id).startswith("outcome unknown")


def test_a_task_whose_cancellation_was_asked_for_is_cancelled(bench: Bench, dead: Dead) -> None:
    task_id = bench.create()
    dead([task_id])
    bench.sql("UPDATE task_pending SET cancel_requested_at = now() WHERE id = :id", id=task_id)
    reaper(bench).reap_dead()
    assert bench.state(task_id) == "CANCELLED"


def test_two_reapers_at_once_charge_once(bench: Bench, dead: Dead) -> None:
    for round_ in range(5):
        ids = [bench.create(retry="1h,1h") for _ in range(4)]
        dead(ids, owner=f"dead {round_}")
        together = threading.Barrier(2)
        both = [reaper(bench), reaper(bench)]

        def look(one: Reaper, together: threading.Barrier = together) -> None:
            together.wait(10)
            one.reap_dead()

        for thread in [bench.beside(look, one) for one in both]:
            thread.join(10)

        reaper(bench).reap_dead()  # who met a locked row left the rest to the next look
        assert counts(bench, ids) == [("PENDING", 1, 0)] + [("PENDING", 0, 0)] * 3
        assert bench.slots.occupied() == []


@pytest.mark.parametrize("same", [True, False])
def test_a_failure_is_told_if_its_reaper_was_killed(bench: Bench, dead: Dead, same: bool) -> None:
    """Or although the COMMIT's reply was lost: then the same reaper looks again."""
    heard: list[Notice] = []
    HOOKS.subscribe(heard.append)
    bench.at_end(lambda: HOOKS.unsubscribe(heard.append))
    bench.succeeding()
    task_id = bench.create(max_attempts=1)
    dead([task_id])
    database = Database(bench.url)
    one = reaper(bench, database)
    with commit_unanswered(database.engine, number=2), pytest.raises(OperationalError):
        one.reap_dead()  # it reads first, then charges
    assert bench.state(task_id) == "FAILED"
    assert heard == []

    next_one = one if same else reaper(bench)
    until(lambda: next_one.reap_dead() == 0, 10, "the end of the time that another has to tell")

    (notice,) = heard
    assert (notice.kind, notice.task_id, notice.name) == (NoticeKind.FAILED, task_id, "t")
    assert notice.cause is not None
    assert notice.cause.kind == "process died"
    assert bench.slots.occupied() == []


def test_who_has_charged_a_task_is_left_the_time_to_tell(bench: Bench, dead: Dead) -> None:
    """Two reapers, step by step: the second comes between the first one's COMMIT and its word."""
    heard: list[Notice] = []
    meanwhile: list[int] = []

    def listen(notice: Notice) -> None:
        if not heard and not meanwhile:
            meanwhile.append(reaper(bench).reap_dead())
        heard.append(notice)

    HOOKS.subscribe(listen)
    bench.at_end(lambda: HOOKS.unsubscribe(listen))
    dead([bench.create(max_attempts=1)])

    reaper(bench).reap_dead()

    assert meanwhile == [1]
    assert [notice.kind for notice in heard] == [NoticeKind.FAILED]
    assert bench.slots.occupied() == []


def test_a_child_whose_task_had_ended_charges_nobody(
    bench: Bench, dead: Dead, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = bench.create()
    dead([task_id])
    with bench.engine.begin() as connection:
        (task,) = claims_of(connection, "dead")
        assert succeed(connection, ending(task))
    reaper(bench).reap_dead()
    (line,) = [r.message for r in caplog.records if r.name.endswith("reaper")]
    assert line.endswith("died: what ran in it is settled already")
    assert bench.state(task_id) == "SUCCEEDED"


def test_a_living_child_is_left_alone(bench: Bench) -> None:
    slot = bench.slots.take("alive")
    reaper(bench).reap_dead()
    assert [view.owner for view in bench.slots.occupied()] == ["alive"]
    slot.free()


def test_a_slot_that_is_locked_does_not_keep_the_others_open(bench: Bench, dead: Dead) -> None:
    locked, free = bench.create(retry="1h"), bench.create(retry="1h")
    dead([locked], owner="dead 1")
    dead([free], owner="dead 2")
    look = reaper(bench).reap_dead

    with bench.engine.begin() as user:
        user.execute(text("SELECT FROM task_pending WHERE id = :id FOR UPDATE"), {"id": locked})
        look()
        assert counts(bench, [locked, free]) == [("RUNNING", 0, 0), ("PENDING", 1, 0)]
    look()

    assert counts(bench, [locked]) == [("PENDING", 1, 0)]
    assert bench.slots.occupied() == []


def test_a_slots_last_words_count_not_those_read_before(bench: Bench, dead: Dead) -> None:
    """Interleaving: a sibling reads the slot (A runs); the child collects A, starts B, dies; look.

    A's outcome was not written yet, so its row is RUNNING: by the old record it would be charged.
    """
    a, b = (bench.create(retry="1h"), bench.create(retry="1h"))
    dead([b, a], running=1)
    runs = {task.task_id: task.run for task in claims(bench, "dead")}

    class Late(Scoreboard):
        def occupied(self) -> list[SlotView]:
            return [replace(view, running=(runs[a],)) for view in super().occupied()]

    reaper(bench, slots=Late(bench.slots.path)).reap_dead()

    assert counts(bench, [a, b]) == [("PENDING", 0, 0), ("PENDING", 1, 0)]


def claims(bench: Bench, owner: str) -> list[ClaimedTask]:
    return bench.do(claims_of, owner)


def test_a_housekeeper_reaps_first(bench: Bench, dead: Dead) -> None:
    task_id = bench.create(retry="1h")
    dead([task_id])
    bench.child()
    until(lambda: counts(bench, [task_id]) == [("PENDING", 1, 0)])


def test_what_was_given_back_and_claimed_is_its_new_owners(bench: Bench, dead: Dead) -> None:
    """Interleaving: the child says that it runs A and gives A back; another claims A; it dies."""
    task_id = bench.create()
    dead([task_id])
    (old,) = claims(bench, "dead")
    bench.do(release, [old.fence])
    bench.do(claim, [task_id], claimer(owner="new"), uuid4())
    reaper(bench).reap_dead()
    assert counts(bench, [task_id]) == [("RUNNING", 0, 0)]
    assert bench.task(task_id).owner == "new"


def test_a_grave_stays_open_while_somebody_holds_the_guilty_row(bench: Bench, dead: Dead) -> None:
    bench.succeeding()
    task_id = bench.create()
    dead([task_id])
    sibling = reaper(bench)

    with bench.engine.begin() as person:
        person.execute(text("SELECT FROM task_pending WHERE id = :id FOR UPDATE"), {"id": task_id})
        open_meanwhile = sibling.reap_dead()
    open_afterwards = sibling.reap_dead()

    assert (open_meanwhile, open_afterwards) == (1, 0)
    assert bench.state(task_id) == "PENDING"
    assert bench.task(task_id).failures == 1


def test_who_dies_while_its_worker_leaves_charges_nobody(bench: Bench, dead: Dead) -> None:
    bench.succeeding()
    ran, unstarted = [bench.create() for _ in range(2)], bench.create()
    dead([*ran, unstarted], running=2)
    bench.slots.leave()
    reaper(bench).reap_dead()
    assert counts(bench, [*ran, unstarted]) == [("PENDING", 0, 0)] * 3
    assert bench.slots.occupied() == []
