"""The standby: a child that stands in when no beat lives, and says when it starves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import psutil
import pytest

from tasks_app import NewTask, create_tasks
from tasks_app.domain.errors import RefusedError
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.dispatch.leader_lease import SCAN, Rank
from tasks_app.runtime.leader.leader import Leader
from tasks_app.runtime.worker.child import Child
from tasks_app.runtime.worker.standby import Standby, StandbyTiming
from tasks_app.runtime.worker.supervisor import starving
from tests.clock import until
from tests.runtime.bench import Bench
from tests.runtime.memory import Memory
from tests.statements import watched

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
    assert bench.do(
        leader_lease.acquire_lease,
        SCAN,
        holder="beat",
        token=BEAT,
        rank=Rank.BEAT,
        ttl=timedelta(seconds=seconds),
    )


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


def test_it_looks_when_its_child_is_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
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
    tasks = bench.do(create_tasks, [NewTask("t")] * 10)
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


def test_it_says_that_it_starves_when_a_task_is_due_for_long(bench: Bench, appoint) -> None:
    child, _ = appoint(scan_interval=0.05)
    task = bench.create()
    until(lambda: starving(bench.slots))
    child.execute([task])
    until(lambda: not starving(bench.slots))


def test_it_does_not_starve_while_another_worker_runs_tasks(bench: Bench, appoint) -> None:
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
def test_it_does_not_starve_for_what_is_not_sent(bench: Bench, appoint, change: str) -> None:
    child, memory = appoint(scan_interval=0.05)
    if change == "refused":
        memory.error, memory.refuse_after = RefusedError, 0
    task = bench.create("unknown" if change == "unknown" else "t", order_key="k")
    if change == "held back":
        bench.sql("UPDATE task_pending SET parked_kind = 'order' WHERE id = :id", id=task)
    since = "SELECT now() - due_at > interval '0.4s' FROM task_pending"
    until(lambda: bench.sql(since) and child.inflight.idle_s() > 0.4)
    assert not starving(bench.slots)


HOUSE = Path(__file__).parents[2] / "broker" / "house"
LEAVES = """
import threading
from concurrent.futures import ThreadPoolExecutor
from tasks_app import handler

POOL = ThreadPoolExecutor()

@handler("leaves")
def leaves(ctx):
    threading.Thread(target=threading.Event().wait).start()
    POOL.submit(threading.Event().wait)
"""


def work(
    bench: Bench,
    *arguments: str,
    log: Any = subprocess.DEVNULL,
    modules: str = "house_handlers",
    before: Sequence[str] = (),
    more: Mapping[str, str] | None = None,
) -> subprocess.Popen:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TASKS_APP_")}
    ours = {
        "TASKS_APP_DATABASE_URL": bench.url,
        "TASKS_APP_IMPORTS": modules,
        "PYTHONPATH": os.pathsep.join([str(HOUSE), os.environ.get("PYTHONPATH", "")]),
    }
    parent = subprocess.Popen(
        [*before, sys.executable, "-m", "tasks_app", "work", *arguments],
        env={**kept, **ours, **(more or {})},
        stderr=log,
    )
    bench.at_end(lambda: end(parent))
    return parent


@pytest.mark.test_all
@pytest.mark.timeout(150, method="thread")
def test_a_thread_that_a_handler_left_does_not_keep_the_worker(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does an executor. The first signal is answered, and children can be told apart."""
    (tmp_path / "leaves_handlers.py").write_text(LEAVES)
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(tmp_path))
    task_id = bench.create("leaves")
    lines = tmp_path / "log"
    with lines.open("w") as log:
        parent = work(bench, "-c", "2", log=log, modules="leaves_handlers")
    until(lambda: bench.state(task_id) == "SUCCEEDED", 90)

    parent.send_signal(signal.SIGINT)

    assert parent.wait(60) == 0
    said = lines.read_text()
    assert "SIGINT: nothing more starts" in said
    assert "ended, although these threads did not: " in said
    assert "MainThread" not in said
    ready = [line.split()[2] for line in said.splitlines() if " ready: " in line]
    assert len(set(ready)) == 2


def end(parent: subprocess.Popen) -> None:
    """Leave nothing of a failed test to the next one."""
    with suppress(psutil.NoSuchProcess):
        for process in (*psutil.Process(parent.pid).children(), parent):
            process.kill()
    parent.wait()


@pytest.mark.test_all
@pytest.mark.timeout(150, method="thread")
def test_poison_runs_max_attempts_times_and_its_neighbours_are_not_charged(bench: Bench) -> None:
    """By a signal, and by leaving through the back door with a good status."""
    bench.sql("CREATE TABLE IF NOT EXISTS effect (task_id bigint, note text)")
    before = [bench.create("ok") for _ in range(20)]
    poison = [
        bench.create("poison", max_attempts=1),
        bench.create("quit", {"status": 0}, retry="0s"),
    ]
    after = [bench.create("ok") for _ in range(20)]

    status = work(bench, "--drain").wait(100)

    assert status == 0
    assert bench.states(poison) == ["FAILED"] * 2
    deaths = [[a.kind for a in bench.attempts(i)] for i in poison]
    assert deaths == [["process died"], ["process died"] * 2]
    assert [bench.task(i).crashes for i in poison] == [0, 0]
    neighbours = [bench.task(i) for i in (*before, *after)]
    assert {(t.state.value, t.failures, t.crashes) for t in neighbours} == {("SUCCEEDED", 0, 0)}
    assert [bench.effects(t.id) for t in neighbours] == [1] * 40


HAS_BEGUN = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'idle in transaction' AND query ~ 'INTO effect'
"""
"""The handler's transaction: a task that is only claimed would be given back."""


@pytest.mark.test_all
@pytest.mark.timeout(150, method="thread")
def test_sigterm_ends_parent_and_child_after_the_running_task(bench: Bench) -> None:
    task_id = bench.create("slow", {"seconds": 2.0})
    rest = [bench.create("ok", delay="1h")]
    parent = work(bench)
    until(lambda: bench.sql(HAS_BEGUN), 30)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(30) == 0
    assert bench.state(task_id) == "SUCCEEDED"
    assert bench.states(rest) == ["PENDING"]
    assert bench.sql("SELECT count(*) FROM task_worker") == 0


LIVE = "SELECT count(*) FROM task_worker"


def children(parent: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(parent.pid).children()


@pytest.mark.test_all
@pytest.mark.timeout(150, method="thread")
def test_each_child_is_a_process_and_a_drain_ends_with_the_last_of_them(bench: Bench) -> None:
    ids = [bench.create("who") for _ in range(12)]
    last = bench.create("slow", {"seconds": 1.0}, priority=9)
    assert work(bench, "-c", "3", "--drain").wait(100) == 0
    assert bench.states([*ids, last]) == ["SUCCEEDED"] * 13
    assert len({bench.task(i).result["pid"] for i in ids}) > 1
    assert bench.sql(LIVE) == 0


@pytest.mark.test_all
@pytest.mark.timeout(150, method="thread")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_whoever_ends_one_child_ends_only_that_one(bench: Bench, number: signal.Signals) -> None:
    parent = work(bench, "-c", "2")
    until(lambda: bench.sql(LIVE) == 2, 30)
    victim, sibling = children(parent)
    ids = [bench.create("who") for _ in range(6)]
    until(lambda: bench.states(ids).count("RUNNING"), 30)

    victim.send_signal(number)

    until(lambda: bench.states(ids) == ["SUCCEEDED"] * 6, 30)
    until(lambda: len(children(parent)) == 2 and victim not in children(parent), 30)
    assert sibling in children(parent)
    until(lambda: bench.sql(LIVE) == 2, 30)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(30) == 0
    assert not sibling.is_running()


@pytest.mark.test_all
@pytest.mark.timeout(150, method="thread")
def test_children_end_by_themselves_when_their_parent_is_killed(bench: Bench) -> None:
    running = [bench.create("slow", {"seconds": 1.0}) for _ in range(2)]
    parent = work(bench, "-c", "2")
    until(lambda: bench.states(running) == ["RUNNING"] * 2, 30)
    orphans = children(parent)
    parent.kill()
    parent.wait()
    assert psutil.wait_procs(orphans, 30)[1] == []
    assert bench.states(running) == ["SUCCEEDED"] * 2
    assert bench.sql(LIVE) == 0


@pytest.mark.test_all
@pytest.mark.timeout(150, method="thread")
def test_an_orphan_does_not_outlive_the_hard_limit_of_its_task(bench: Bench) -> None:
    task_id = bench.create("hang")
    parent = work(bench, "-c", "1")
    until(lambda: bench.state(task_id) == "RUNNING", 30)
    (orphan,) = children(parent)
    parent.kill()
    parent.wait()
    assert psutil.wait_procs([orphan], 30)[1] == []
    assert bench.state(task_id) == "RUNNING"  # until its lease is over
