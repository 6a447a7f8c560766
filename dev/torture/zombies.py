"""Zombies: processes that are stopped beyond their lease and go on as if nothing had been (F09).

Each claims a task, is stopped, loses it to the rescue, and writes when it wakes: by every verb that
a child has. Not one of these writes may be accepted.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from uuid import uuid4

from psycopg.pq import DiagnosticField
from sqlalchemy import Connection, Engine, create_engine, text

from tasks_app import create_task
from tasks_app.domain.handlers.settlement import settle_return
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.embedded.stack import temporary
from tasks_app.pool.runs.claim import Claimer, claim
from tasks_app.pool.runs.leases import release, renew, rescue_expired
from tasks_app.pool.runs.settle import settle_group, settle_one
from tasks_app.pool.runs.settle_success import success_statement
from tasks_app.pool.schema import migrate
from tasks_app.pool.tasks.amend import replace_payload

LEASE = timedelta(seconds=0.5)
STALE, ACCEPTED = 0, 1
"""What a zombie's exit says of its write."""


def _claimer(owner: str) -> Claimer:
    return Claimer(owner, LEASE, ("zombie",), (100,), (False,))


def _group(connection: Connection, task: ClaimedTask) -> bool:
    return bool(settle_group(connection, [settle_return(task, None, 1)]))


def _one(connection: Connection, task: ClaimedTask) -> bool:
    return settle_one(connection, settle_return(task, None, 1)) is not None


def _effect(connection: Connection, task: ClaimedTask) -> bool:
    word, driver = (
        success_statement(settle_return(task, None, 1)),
        connection.connection.driver_connection,
    )
    answer = driver.pgconn.exec_params(word.sql, word.values, word.types)  # type: ignore[union-attr]
    return bool(answer.error_field(DiagnosticField.SQLSTATE) != b"TA002")


def _renew(connection: Connection, task: ClaimedTask) -> bool:
    return bool(renew(connection, [task.fence], LEASE))


def _release(connection: Connection, task: ClaimedTask) -> bool:
    return bool(release(connection, [task.fence]))


def _amend(connection: Connection, task: ClaimedTask) -> bool:
    return bool(replace_payload(connection, task.fence, "{}"))


Write = Callable[[Connection, ClaimedTask], bool]
WRITES: dict[str, Write] = {
    "settle of a group": _group,
    "settle of one": _one,
    "settle with its effects": _effect,
    "renewal": _renew,
    "release": _release,
    "new payload": _amend,
}


def _zombie(url: str, task_id: int, write: Write) -> None:
    """Claim, stop, write; never returns."""
    os.setsid()  # or the kernel wakes it when the shell that started us ends
    status = 2
    try:
        engine = create_engine(url)
        with engine.begin() as connection:
            (task,) = claim(connection, [task_id], _claimer(f"zombie {os.getpid()}"), uuid4())
        os.kill(os.getpid(), signal.SIGSTOP)
        with engine.begin() as connection:
            status = ACCEPTED if write(connection, task) else STALE
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def trials(
    number: int, at_once: int, seed: int, verbs: Mapping[str, Write] = WRITES
) -> Counter[str]:
    """Carry out this many trials; return how they ended, by the write."""
    rng = random.Random(seed)
    ended: Counter[str] = Counter()
    with temporary() as stack:
        engine = create_engine(stack.urls.database)
        with engine.begin() as connection:
            migrate(connection)
        for begun in range(0, number, at_once):
            writes = rng.choices(list(verbs.items()), k=min(at_once, number - begun))
            _round(engine, stack.urls.database, writes, ended, rng)
        engine.dispose()
    return ended


def _round(
    engine: Engine,
    url: str,
    writes: list[tuple[str, Write]],
    ended: Counter[str],
    rng: random.Random,
) -> None:
    with engine.begin() as connection:
        ids = [int(create_task(connection, "zombie")) for _ in writes]
    engine.dispose()  # or the forks would share its sockets
    zombies = {}
    for task_id, (name, write) in zip(ids, writes, strict=True):
        pid = os.fork()
        if pid == 0:
            _zombie(url, task_id, write)
        zombies[pid] = (task_id, name)
    for pid in list(zombies):
        if not os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]):
            _, name = zombies.pop(pid)
            ended[f"{name}: BROKEN before it was stopped"] += 1
    _take_away(engine, [task_id for task_id, _ in zombies.values()], rng)
    for pid in zombies:
        os.kill(pid, signal.SIGCONT)
    for pid, (_, name) in zombies.items():
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        ended[f"{name}: {('refused', 'ACCEPTED')[status] if status < 2 else 'BROKEN'}"] += 1
    _settle_the_rest(engine, ended)


def _take_away(engine: Engine, ids: list[int], rng: random.Random) -> None:
    """Wait until all leases are over and rescue; others claim half of them anew."""
    rescued: set[int] = set()
    while rescued != set(ids):
        time.sleep(0.05)
        with engine.begin() as connection:
            rescued |= set(rescue_expired(connection, lease=LEASE, max_crashes=1_000))
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE task_pending SET due_at = now(), scan_at = now(), crashes = 0")
        )
        claim(connection, rng.sample(ids, len(ids) // 2), _claimer("heir"), uuid4())


def _settle_the_rest(engine: Engine, ended: Counter[str]) -> None:
    """Check that no task of the round is over: every write of the zombies was refused."""
    with engine.begin() as connection:
        left = connection.execute(text("SELECT count(*) FROM task_completed")).scalar_one()
        ended["tasks that a zombie ended"] += int(left)
        connection.execute(text("TRUNCATE task_pending, task_completed"))


def main(number: int, at_once: int, seed: int) -> int:
    """Print how they ended; 0 if nothing was accepted."""
    started = time.monotonic()
    ended = trials(number, at_once, seed)
    for what, times in sorted(ended.items()):
        print(f"  {times:>6}  {what}")
    bad = sum(n for what, n in ended.items() if "refused" not in what)
    verdict = "PASSED" if bad == 0 else "FAILED"
    print(f"{verdict}  {number} zombies, seed {seed}, {time.monotonic() - started:.0f} s")
    return 0 if bad == 0 else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000, 8, 1))
