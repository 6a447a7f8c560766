"""Some processes take groups of locks at random and are killed: who held what, and who says so."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tasks_app.pool.locks.holders import GONE_FOR, prune_locks
from tests.runtime.contenders import Tried, read, violations

pytestmark = pytest.mark.timeout(3600)

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
    """How many groups a process has asked for."""
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
