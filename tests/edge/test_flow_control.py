"""Limits, keys and locks with real processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tasks_app import NewTask, create_tasks
from tasks_app.domain.flow_control.admission import EVERY
from tasks_app.domain.flow_control.limits import GateKind, Limit, limit_of
from tasks_app.pool.dispatch import scan
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.pool.locks.holders import GONE_FOR, prune_locks
from tests.broker.conftest import House
from tests.clock import until
from tests.edge.gated_runs import Run, Workers, most_at_once, overlaps
from tests.runtime.bench import Bench
from tests.runtime.conftest import bench  # noqa: F401  a fixture
from tests.runtime.contenders import Tried, read, violations
from tests.runtime.flow_control.test_fair_queues import Line, fill, share

BIG, NINE, EACH = 20_000, 9, 50
TASK_S = 0.004


@pytest.fixture
def line(engine: Engine, bench: Bench) -> Iterator[Line]:  # noqa: F811
    """A worker that takes some time for each task, and gets a hundred in a message."""
    with engine.begin() as connection:
        scan.write_run_times(connection, {"t": TASK_S})
    line = Line(engine, bench, task_s=TASK_S)
    yield line
    line.close()


def waits(line: Line, ids: set[int]) -> tuple[float, int]:
    """Run until all of these are over; return the p99 of their waits, in seconds and in tasks."""
    began, before = time.monotonic(), len(line.ran)
    took: list[tuple[float, int]] = []
    while len(took) < len(ids):
        ran = line.turn()
        for place, task_id in enumerate(ran, start=len(line.ran) - before - len(ran) + 1):
            if task_id in ids:
                took.append((time.monotonic() - began, place))
    took.sort()
    return took[int(len(took) * 0.99) - 1]


@pytest.mark.timeout(900)
def test_nine_small_tenants_wait_at_most_three_times_as_long_beside_a_big_one(
    engine: Engine, line: Line
) -> None:
    share(engine)
    line.turn()
    nine = {f"small{n}": EACH for n in range(NINE)}
    alone_s, alone = waits(line, set(fill(engine, **nine)))
    with engine.begin() as connection:
        create_tasks(connection, [NewTask("t", None, {"fair_key": "big"})] * BIG)
    line.turn()
    beside_s, beside = waits(line, set(fill(engine, **nine)))
    print(f"\np99 alone {alone_s:.2f} s, after {alone} tasks; beside {beside_s:.2f} s, {beside}")
    assert beside <= 3 * alone
    assert beside_s <= 3 * alone_s


@pytest.mark.timeout(900)
def test_the_lowest_priority_of_each_tenant_gets_its_floor(engine: Engine, line: Line) -> None:
    share(engine)
    low: dict[str, set[int]] = {}
    with engine.begin() as connection:
        for key in ("a", "b"):
            for priority in (0, 5, 9):
                ids = create_tasks(
                    connection,
                    [NewTask("t", None, {"fair_key": key, "priority": priority})] * 1_000,
                )
                low[key] = set(map(int, ids))
    while len(line.ran) < 1_500:
        line.turn()

    went = {key: len(ids & set(line.ran)) for key, ids in low.items()}
    print(f"\nof {len(line.ran)} tasks of two tenants: {went} of priority 9")
    assert all(number >= len(line.ran) / 2 / EVERY - 2 for number in went.values())


KEYS, OF_KEY = 20, 20
LEFT = text("SELECT count(*) FROM task_pending")


Gangs = Callable[..., Workers]


@pytest.fixture
def gangs(database_url: str, tmp_path: Path) -> Iterator[Gangs]:
    with ExitStack() as end:

        def start(number: int, threads: int = 1) -> Workers:
            gang = Workers(database_url, tmp_path, number, threads)
            end.callback(gang.stop)
            return gang

        yield start


def left(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(LEFT).scalar_one()


def runs_of(engine: Engine, gang: Workers, *, kill_every: int) -> list[Run]:
    with gang.kills(every=kill_every):
        until(lambda: left(engine) == 0, 400)
    runs = gang.runs()
    print(f"{len(runs)} runs, {len(gang.killed)} kills, at most {most_at_once(runs)} at once")
    assert gang.killed
    return runs


def create(engine: Engine, *tasks: NewTask) -> list[int]:
    with engine.begin() as connection:
        return [int(task_id) for task_id in create_tasks(connection, tasks)]


@pytest.mark.timeout(600, method="thread")
def test_tasks_of_a_key_run_one_at_a_time_while_workers_are_killed(
    engine: Engine, gangs: Gangs
) -> None:
    ids = create(
        engine,
        *(
            NewTask(
                "gated", {"key": f"k{n % KEYS}", "seconds": 0.05}, {"order_key": f"k{n % KEYS}"}
            )
            for n in range(KEYS * OF_KEY)
        ),
    )
    runs = runs_of(engine, gangs(4), kill_every=50)
    assert len(runs) > len(ids), "no kill hit a run"
    assert set(ids) == {run.task_id for run in runs}
    assert overlaps(runs) == 0
    first = Counter[str]()
    for run in sorted(runs):
        assert run.task_id >= first[run.key], "a later one of the key ran before"
        first[run.key] = run.task_id


@pytest.mark.timeout(600, method="thread")
def test_no_more_than_the_limit_run_while_workers_are_killed(engine: Engine, gangs: Gangs) -> None:
    with engine.begin() as connection:
        set_limit(connection, Limit(GateKind.KEY, "tenant:*", 3))
    payload = {"key": "tenant:1", "seconds": 0.3}  # long beside the way from one run to the next
    ids = create(engine, *[NewTask("gated", payload, {"limit_key": "tenant:1"})] * 90)
    runs = runs_of(engine, gangs(4, threads=2), kill_every=15)
    assert set(ids) == {run.task_id for run in runs}
    assert most_at_once(runs) == 3


@pytest.mark.timeout(600, method="thread")
def test_no_more_than_each_limit_run_of_tasks_with_several_keys_while_workers_are_killed(
    engine: Engine, gangs: Gangs
) -> None:
    with engine.begin() as connection:
        set_limit(connection, Limit(GateKind.KEY, "bank", 4))
        set_limit(connection, Limit(GateKind.KEY, "tenant:*", 2))
    payload = {"key": "bank", "seconds": 0.2}
    tenants = [f"tenant:{n % 3}" for n in range(120)]
    keys = [[tenant, "bank"] if n % 2 else ["bank", tenant] for n, tenant in enumerate(tenants)]
    ids = create(engine, *(NewTask("gated", payload, {"limit_key": pair}) for pair in keys))
    runs = runs_of(engine, gangs(4, threads=2), kill_every=20)
    tenant_of = dict(zip(ids, tenants, strict=True))
    each = {
        tenant: most_at_once([run for run in runs if tenant_of[run.task_id] == tenant])
        for tenant in tenant_of.values()
    }
    assert set(ids) == {run.task_id for run in runs}
    assert most_at_once(runs) == 4
    assert set(each.values()) == {2}


RATE, BURST, SPAN_S = 10, 5, 15.0
LATENCY_TASKS = 2
"""A start is noted some time after its claim, and that time varies."""


@pytest.mark.timeout(600, method="thread")
def test_a_bucket_keeps_its_rate_and_never_gives_more_than_its_burst(
    engine: Engine, gangs: Gangs
) -> None:
    with engine.begin() as connection:
        set_limit(connection, limit_of("name", "gated", None, f"{RATE}/1s", BURST))
    create(engine, *[NewTask("gated", {"key": "k"})] * int(RATE * SPAN_S * 1.5))
    gang = gangs(2)
    until(lambda: gang.log.exists() and len(gang.runs()) > BURST, 120)
    ends = gang.runs()[BURST].began / 1e9 + SPAN_S
    until(lambda: gang.runs()[-1].began / 1e9 > ends, 2 * SPAN_S)
    starts = [run.began / 1e9 for run in gang.runs()]

    first = starts[BURST]  # what the full bucket held at the beginning is not its rate
    within = sum(first <= at < first + SPAN_S for at in starts)
    most = max(
        sum(at <= other < at + span for other in starts) - RATE * span
        for span in (0.5, 1.0, 5.0)
        for at in starts
    )
    print(f"{within} starts in {SPAN_S:g} s at {RATE}/s; at most {most:+.1f} beside the rate")
    assert abs(within - RATE * SPAN_S) <= LATENCY_TASKS + 0.02 * RATE * SPAN_S
    assert most <= BURST + LATENCY_TASKS


CAUSES = {
    "late": "HandlerTimeoutError",
    "late.async": "HandlerTimeoutError",
    "hang": "process died",
    "stuck.async": "process died",
}
CHARGED = "SELECT count(*) FROM task_completed WHERE failures > 0 OR crashes > 0"


@pytest.mark.timeout(180, method="thread")
def test_limits_inside_a_message_hit_only_their_own_tasks(house: House, tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text("worker_pool_start_method = 'spawn'\n")
    house.worker(folder=tmp_path, TASKS_APP_LEASE="30s")
    house.beat(TASKS_APP_LEASE="30s")
    ids = {name: house.create(name)[0] for name in CAUSES}
    neighbours = [*house.create("ok", 60), *house.create("plain", 20)]
    states = house.over([*ids.values(), *neighbours], 60)
    assert states == {"FAILED": 4, "SUCCEEDED": 80}
    assert {name: house.attempts(i)[-1].kind for name, i in ids.items()} == CAUSES
    assert house.sql(CHARGED) == 0
    assert house.effects() == (60, 60)


PROCESSES, ACQUISITIONS = 4, int(os.environ.get("LOCKS_TRIED", "1500"))
KILL_EVERY_S = 1.5
LEASE = "1500ms"
TICK_S = 0.001
"""So far may two readings of the two clocks be off."""
_DEADLOCKS = text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
_WAITED = text("SELECT * FROM task_lock_wait WHERE outcome IN ('granted', 'timed_out')")
_REPORT = text("SELECT * FROM task_lock_report")


def start(engine: Engine, folder: Path, seed: int, acquisitions: int) -> subprocess.Popen:
    url = engine.url.render_as_string(hide_password=False)
    name = f"p{seed}"
    module = ["-m", "tests.runtime.contenders"]
    given = [url, str(folder / name), str(seed), str(acquisitions), LEASE]
    return subprocess.Popen([sys.executable, *module, *given])


def asks(path: Path) -> int:
    return path.read_text().count('"ask"') if path.exists() else 0


def tried_in(folder: Path, killed: dict[str, float]) -> list[Tried]:
    return [
        tried for path in sorted(folder.iterdir()) for tried in read(path, killed.get(path.name))
    ]


def run(engine: Engine, folder: Path) -> list[Tried]:
    """Let them contend until so much was tried; kill one now and then, and start another."""
    dice = random.Random(1)
    share = ACQUISITIONS // PROCESSES
    running = {f"p{n}": start(engine, folder, n, share) for n in range(PROCESSES)}
    try:
        killed = contend(dice, engine, folder, running)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return tried_in(folder, killed)


def contend(
    dice: random.Random, engine: Engine, folder: Path, running: dict[str, subprocess.Popen]
) -> dict[str, float]:
    """Kill and replace until all have ended; return when each of the killed was surely gone."""
    seed, killed = PROCESSES, dict[str, float]()
    kill_at = time.monotonic() + KILL_EVERY_S
    while running:
        time.sleep(0.05)
        for name in [name for name, process in running.items() if process.poll() is not None]:
            assert running.pop(name).returncode == 0, name
        if time.monotonic() < kill_at or not running:
            continue
        kill_at = time.monotonic() + KILL_EVERY_S * dice.uniform(0.5, 1.5)
        begun = [name for name in running if asks(folder / name) >= 10]
        if not begun:
            continue
        name = dice.choice(begun)
        path, process = folder / name, running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed[name] = time.monotonic()
        left = int(process.args[-2]) - asks(path)  # type: ignore[index]
        if left > 0:
            running[f"p{seed}"] = start(engine, folder, seed, left)
            seed += 1
    return killed


@pytest.mark.timeout(3600)
def test_groups_of_locks_by_processes_that_are_killed(engine: Engine, tmp_path: Path) -> None:
    with engine.connect() as connection:
        deadlocks = connection.execute(_DEADLOCKS).scalar_one()
    began = time.monotonic()

    tries = run(engine, tmp_path)

    took = time.monotonic() - began
    kills = sum(tried.killed is not None for tried in tries)
    assert len(tries) >= ACQUISITIONS
    assert kills
    assert violations(tries) == []
    with engine.connect() as connection:
        assert connection.execute(_DEADLOCKS).scalar_one() == deadlocks
        report = {row.resource: row for row in connection.execute(_REPORT)}
        waited = connection.execute(_WAITED).all()
    agree(tries, report)
    waits_agree(tries, waited)
    nothing_is_left(engine)
    outcomes = Counter(
        "granted"
        if t.held
        else "timed out"
        if t.denied and t.waits
        else "denied"
        if t.denied
        else "killed before the answer"
        for t in tries
    )
    waits = sorted(t.held - t.asked for t in tries if t.held)
    print(
        f"\n{len(tries)} groups in {took:.0f} s, {kills} kills: {dict(outcomes)}; "
        f"to hold took {waits[len(waits) // 2] * 1e3:.1f} ms in the middle, "
        f"{waits[-len(waits) // 100] * 1e3:.0f} ms for 99 of 100, {waits[-1]:.1f} s at most; "
        f"waits {sum(r.waits for r in report.values())}, "
        f"taken over {sum(r.taken_over for r in report.values())}"
    )


def agree(tries: list[Tried], report: dict) -> None:
    """What the tables say is what the processes saw; who was killed may have got a step further."""
    for name, row in report.items():
        mine = [t for t in tries if any(part.resource == name for part in t.parts)]
        unsure = sum(t.uncertain for t in mine)
        granted = sum(t.held is not None for t in mine)
        assert granted <= row.grants <= granted + unsure
        denied = sum(name in t.by for t in mine if not t.waits)
        assert denied <= row.denials <= denied + unsure
        late = sum(name in t.by for t in mine if t.waits)
        in_vain = sum(t.denied is not None and t.waits for t in mine)
        assert late - row.vanished <= row.timed_out <= in_vain + unsure


def waits_agree(tries: list[Tried], rows: list) -> None:
    """Each wait in the tables lies within one that a process saw, of one of its resources."""
    offset = time.time() - time.monotonic()
    seen = {}
    for tried in tries:
        seen.setdefault(tried.who, []).append(tried)
    for row in rows:
        asked, ended = row.asked_at.timestamp() - offset, row.ended_at.timestamp() - offset
        assert any(
            row.resource in {part.resource for part in tried.parts}
            and tried.asked <= asked + TICK_S
            and ended <= (tried.held or tried.denied or tried.killed or 0) + TICK_S
            and (tried.uncertain or (tried.held is not None) == (row.outcome == "granted"))
            for tried in seen[row.who]
        ), row


def nothing_is_left(engine: Engine) -> None:
    """What the killed held ends with its lease; nobody else left anything."""
    with engine.begin() as connection:
        left = connection.execute(
            text(
                "SELECT count(*) FROM task_lock_holder WHERE lease_until > now() + interval '1.5s'"
            )
        ).scalar_one()
        assert left == 0
        later = connection.execute(
            text("SELECT now() + interval '2 s' + CAST(:gone AS interval)"), {"gone": GONE_FOR}
        ).scalar_one()
        prune_locks(connection, 1000, now=later)
        assert connection.execute(text("SELECT count(*) FROM task_lock_part")).scalar_one() == 0
