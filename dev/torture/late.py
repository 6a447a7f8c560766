"""Late commits: producers hold their transactions open, and commit in any order (F55).

Ids and due instants are given at the INSERT, so a row may become visible long after rows that came
behind it were found. ``python -m dev.torture.late [transactions] [seconds]``.
"""

from __future__ import annotations

import heapq
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, text

from dev.torture.run import Plan, running
from dev.torture.world import World
from tasks_app import create_task

AT_ONCE = 80
ROLLED_BACK = 0.1


@dataclass(order=True, slots=True)
class Held:
    """A transaction that is still open."""

    ends_at: float
    connection: Connection = field(compare=False)
    task_id: int = field(compare=False)


def produce(
    world: World, transactions: int, longest_s: float, rng: random.Random
) -> tuple[set[int], set[int]]:
    """Begin and end this many transactions; return the ids committed, and those rolled back."""
    held: list[Held] = []
    committed: set[int] = set()
    rolled_back: set[int] = set()
    for _ in range(transactions):
        connection = world.engine.connect()
        task_id = int(create_task(connection, "torture.quick"))
        heapq.heappush(
            held, Held(time.monotonic() + rng.uniform(0, longest_s), connection, task_id)
        )
        for each in _over(held, AT_ONCE):
            _end(each, committed, rolled_back, rng)
    while held:
        for each in _over(held, 0):
            _end(each, committed, rolled_back, rng)
    return committed, rolled_back


def _over(held: list[Held], most: int) -> Iterator[Held]:
    """Yield those whose time has come; wait for the next one while there are too many."""
    while held and (held[0].ends_at <= time.monotonic() or len(held) > most):
        time.sleep(max(0.0, held[0].ends_at - time.monotonic()))
        yield heapq.heappop(held)


def _end(held: Held, committed: set[int], rolled_back: set[int], rng: random.Random) -> None:
    with held.connection as connection:
        if rng.random() < ROLLED_BACK:
            connection.rollback()
            rolled_back.add(held.task_id)
        else:
            connection.execute(
                text("INSERT INTO ended VALUES (:id, clock_timestamp())"), {"id": held.task_id}
            )
            connection.commit()
            committed.add(held.task_id)


_FOUND = text("""
    SELECT c.id, extract(epoch FROM c.started_at - e.at) AS late
    FROM task_completed c LEFT JOIN ended e ON e.id = c.id
""")


def main(transactions: int, longest_s: float, seed: int = 1) -> int:
    """Print what was missed, and how long the others waited after their commits."""
    plan = Plan(seed, 0, 10.0, 0.0, 60.0, workers=1, beats=1)
    with running(plan, Path(tempfile.mkdtemp(prefix="tasks_app-torture-"))) as world:
        with world.engine.begin() as connection:
            connection.execute(text("CREATE TABLE ended (id bigint, at timestamptz)"))
        committed, rolled_back = produce(world, transactions, longest_s, random.Random(seed))
        found = _found(world, len(committed))
    waits = sorted(max(0.0, late) for late in found.values())
    missed, ghosts = committed - set(found), set(found) & rolled_back
    print(f"{len(committed)} committed, {len(rolled_back)} rolled back, held up to {longest_s:g} s")
    print(f"missed: {len(missed)}; ran although rolled back: {len(ghosts)}")
    if waits:
        middle, late = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]
        print(f"from COMMIT to start: p50 {middle:.2f} s, p99 {late:.2f} s, most {waits[-1]:.2f} s")
    return 1 if missed or ghosts else 0


def _found(world: World, wanted: int) -> dict[int, float]:
    deadline = time.monotonic() + 30
    while True:
        with world.engine.connect() as connection:
            found = {int(i): float(late or 0) for i, late in connection.execute(_FOUND)}
        if len(found) >= wanted or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


if __name__ == "__main__":
    numbers = [float(argument) for argument in sys.argv[1:]]
    sys.exit(main(int(numbers[0]) if numbers else 2_000, numbers[1] if len(numbers) > 1 else 20.0))
