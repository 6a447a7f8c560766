"""The standby: a child that stands in when no beat lives, and says when it starves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from unittest.mock import Mock
from uuid import uuid4

import pytest

from tasks_app import NewTask, create_tasks
from tasks_app.domain.errors import RefusedError
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.dispatch.leader_lease import SCAN, Rank
from tasks_app.runtime.leader.leader import Leader
from tasks_app.runtime.worker.child import Child
from tasks_app.runtime.worker.standby import Standby, StandbyTiming
from tasks_app.runtime.worker.supervisor import starving
from tests.runtime.bench import Bench
from tests.runtime.memory import Memory
from tests.statements import watched
from tests.waiting import until

BEAT = uuid4()
HOLDER = "SELECT holder FROM task_lease WHERE name = 'scan' AND held_until > now()"
QUIET = "SELECT now() - done_at > interval '0.5s' FROM task_lease WHERE name = 'scan'"


HURRIED = StandbyTiming(
    look_every_s=0.05,
    first_look_within_s=0.05,
    hungry_after=timedelta(seconds=0.3),
    hunger_every_s=0.05,
)


@pytest.fixture
def appoint(bench: Bench) -> Iterator[Callable[..., tuple[Child, Memory]]]:
    """Start a child with its standby; a broker in memory takes what it publishes."""
    standbys = []

    def start(**settings: float) -> tuple[Child, Memory]:
        bench.succeeding()
        child, memory = bench.child(**settings), Memory()
        given = bench.settings(**settings)
        leader = Leader(given, child.database, memory, f"standby {len(standbys)}")
        standbys.append(Standby(given, leader, child, HURRIED))
        standbys[-1].start()
        return child, memory

    yield start
    for standby in standbys:
        standby.stop()


def beat_leads(bench: Bench, seconds: float) -> None:
    with bench.engine.begin() as connection:
        assert leader_lease.acquire_lease(
            connection, SCAN, holder="beat", token=BEAT, rank=Rank.BEAT,
            ttl=timedelta(seconds=seconds),
        )  # fmt: skip


@pytest.mark.test_all
def test_it_scans_when_no_beat_lives_until_one_comes(bench: Bench, appoint) -> None:
    _, memory = appoint()
    first = bench.create()
    until(lambda: first in memory.ids())
    assert bench.sql(HOLDER) == "standby 0"

    beat_leads(bench, 4)
    scanned = "SELECT max(done_at) FROM task_lease WHERE name = 'scan'"
    seen = [bench.sql(scanned)]
    until(lambda: seen.append(bench.sql(scanned)) or (len(seen) > 60 and len(set(seen[-50:])) == 1))
    second = bench.create()

    assert bench.sql(HOLDER) == "beat"
    until(lambda: second in memory.ids(), 10)


def test_its_first_look_comes_when_the_scan_can_see_its_child(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise that scan publishes nothing for this child, and the next is a whole look later."""
    child, order = bench.child(), []
    known, wait = child.housekeeper.renewer.known, child.housekeeper.renewer.known.wait
    monkeypatch.setattr(known, "wait", lambda _: wait(30) and order.append("known"))
    leader = Mock(hold=lambda: order.append("look"))
    standby = Standby(bench.settings(), leader, child, HURRIED)

    standby.start()

    until(lambda: "look" in order)
    standby.stop()
    assert order[:2] == ["known", "look"]


def test_two_standbys_scan_one_at_a_time(bench: Bench, appoint) -> None:
    memories = [appoint()[1] for _ in range(2)]
    with bench.engine.begin() as connection:
        tasks = create_tasks(connection, [NewTask("t")] * 10)

    until(lambda: len(memories[0].ids() + memories[1].ids()) == 10)

    assert sorted(memories[0].ids() + memories[1].ids()) == sorted(tasks)
    assert [] in (memories[0].ids(), memories[1].ids())


@pytest.mark.test_all
def test_who_ends_or_drains_lets_another_one_go_on(bench: Bench, appoint) -> None:
    child, _ = appoint()
    until(lambda: bench.sql(HOLDER) == "standby 0")

    child.inflight.stop()
    until(lambda: bench.sql(HOLDER) is None, 3)

    _, memory = appoint()
    task = bench.create()
    until(lambda: task in memory.ids())
    bench.slots.drain()
    until(lambda: bench.sql(HOLDER) is None, 3)


def test_who_cannot_publish_leaves_it_to_another(bench: Bench, appoint) -> None:
    _, deaf = appoint()
    deaf.refuse_after = 0
    until(lambda: bench.sql(HOLDER) == "standby 0")
    task = bench.create()
    until(lambda: bench.sql(HOLDER) is None)

    _, memory = appoint()

    until(lambda: task in memory.ids(), 4)
    assert deaf.probes == 0  # it stands back for longer


@pytest.mark.test_all
def test_it_asks_again_when_the_leaders_lease_could_be_over(bench: Bench, appoint) -> None:
    beat_leads(bench, 1.5)

    child, memory = appoint()
    with watched(child.database.engine, "FROM task_lease l WHERE l.name") as looks:
        task = bench.create()
        until(lambda: task in memory.ids(), 5)

    assert len(looks) <= 6  # not one for each twentieth of a second


def test_it_says_that_it_starves_when_a_task_is_due_for_long_and_nobody_came(
    bench: Bench, appoint
) -> None:
    child, _ = appoint(scan_interval=0.05)
    task = bench.create()

    until(lambda: starving(bench.slots))

    child.execute([task])
    until(lambda: not starving(bench.slots))


def test_it_does_not_starve_while_another_worker_runs_what_it_was_not_given(
    bench: Bench, appoint
) -> None:
    appoint(scan_interval=0.05)
    task = bench.create()
    until(lambda: starving(bench.slots))
    bench.sql(
        "UPDATE task_pending SET state = 'RUNNING', lease_token = gen_random_uuid(), owner = 'w',"
        " lease_until = now() + interval '1 hour', started_at = now(), max_attempts = 3,"
        " at_most_once = false, attempt = 1 WHERE id = :id",
        id=task,
    )

    until(lambda: not starving(bench.slots))


@pytest.mark.parametrize("change", ["refused", "unknown", "held back"])
def test_it_does_not_starve_for_what_no_message_could_bring(
    bench: Bench, appoint, change: str
) -> None:
    child, memory = appoint(scan_interval=0.05)
    if change == "refused":
        memory.error, memory.refuse_after = RefusedError, 0
    task = bench.create("unknown" if change == "unknown" else "t", order_key="k")
    if change == "held back":
        bench.sql("UPDATE task_pending SET parked_kind = 'order' WHERE id = :id", id=task)
    since = "SELECT now() - due_at > interval '0.4s' FROM task_pending"
    until(lambda: bench.sql(since) and child.inflight.idle_s() > 0.4)

    assert not starving(bench.slots)
