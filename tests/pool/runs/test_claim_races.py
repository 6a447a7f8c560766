"""Many processes race for the same ids, and the claim that looks right and is not."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.pool.runs.claim import claim
from tasks_app.pool.tasks.create import create_many
from tests.factory import a_row, claimer, pending_task
from tests.pool.interleave import blocked, two

PROCESSES, TASKS, OFFERS, MESSAGE = 8, 2_000, 10, 50

# The modules are imported once, then the racers fork; each makes an engine of its own, says that it
# is ready, and all start at once when the test lets go of a lock.
RACERS = """
import os, sys
from pathlib import Path
from uuid import uuid4
from sqlalchemy import create_engine
from tasks_app.pool.runs.claim import claim, claim_unhindered
from tests.factory import claimer

def race(me, url, messages):
    engine, won = create_engine(url, isolation_level="READ COMMITTED"), []
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
        os.write(1, b"ready\\n")
        connection.exec_driver_sql("SELECT pg_advisory_lock_shared(4712)")
        connection.commit()
        for number, message in enumerate(messages):
            ids = [int(task_id) for task_id in message.split(",")]
            way = (claim, claim_unhindered)[number % 2]
            won += [t.task_id for t in way(connection, ids, claimer(owner=f"w{me}"), uuid4())]
            connection.commit()
    Path(sys.argv[1], str(me)).write_text(" ".join(map(str, won)))

number = int(sys.argv[2])
url, *messages = sys.stdin.read().split()
children = []
for me in range(number):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            race(me, url, messages[me::number])
            code = 0
        finally:
            os._exit(code)
    children.append(child)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""

NAIVE = text("""
    UPDATE naive SET state = 'RUNNING', claims = claims + 1
    WHERE id = (SELECT id FROM naive WHERE state = 'PENDING' ORDER BY id LIMIT 1) RETURNING id
""")


def naive_claim(connection: Connection) -> list[int]:
    return list(connection.execute(NAIVE).scalars())


def our_claim(connection: Connection, ids: Sequence[int]) -> list[int]:
    return [task.task_id for task in claim(connection, ids, claimer(), uuid4())]


@pytest.mark.test_all
def test_eight_processes_race_over_ten_copies_of_each_id_and_each_is_claimed_once(
    engine: Engine, database_url: str, project: Path, tmp_path: Path
) -> None:
    with engine.begin() as connection:
        ids = create_many(connection, [a_row()] * TASKS)
    copies = [int(task_id) for task_id in ids] * OFFERS
    random.Random(7).shuffle(copies)
    messages = [
        ",".join(map(str, copies[start : start + MESSAGE]))
        for start in range(0, len(copies), MESSAGE)
    ]

    command = [sys.executable, "-c", RACERS, str(tmp_path), str(PROCESSES)]
    pipe = subprocess.PIPE
    with (
        engine.connect() as starter,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=project) as racers,
    ):
        starter.exec_driver_sql("SELECT pg_advisory_xact_lock(4712)")
        assert racers.stdin is not None
        assert racers.stdout is not None
        racers.stdin.write(f"{database_url} {' '.join(messages)}")
        racers.stdin.close()
        assert [racers.stdout.readline() for _ in range(PROCESSES)] == ["ready\n"] * PROCESSES
        starter.rollback()
        assert racers.wait(timeout=60) == 0

    won = [(tmp_path / str(me)).read_text().split() for me in range(PROCESSES)]
    claims = Counter(int(task_id) for ids_of_one in won for task_id in ids_of_one)
    assert set(claims) == set(ids)
    assert set(claims.values()) == {1}
    assert sum(1 for ids_of_one in won if ids_of_one) > 1, "nobody raced"
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT DISTINCT state, attempt FROM task_pending")
        assert rows.all() == [("RUNNING", 1)]


def test_the_naive_claim_reads_then_waits_then_claims_what_another_claimed(engine: Engine) -> None:
    with two(engine) as (a, b):
        a.exec_driver_sql("DROP TABLE IF EXISTS naive")
        a.exec_driver_sql("CREATE TABLE naive (id int, state text, claims int)")
        a.exec_driver_sql("INSERT INTO naive VALUES (1, 'PENDING', 0), (2, 'PENDING', 0)")
        a.commit()
        first = naive_claim(a)
        waiting = blocked(engine, b, a, naive_claim)

        a.commit()
        second = waiting.result()
        b.commit()

        assert first == second == [1], "both hold row 1"
        claims = a.exec_driver_sql("SELECT claims FROM naive ORDER BY id").scalars().all()
        a.exec_driver_sql("DROP TABLE naive")
        a.commit()
        assert list(claims) == [2, 0]


def test_our_claim_in_the_same_interleaving_skips_and_takes_the_other_row(engine: Engine) -> None:
    with two(engine) as (a, b):
        one, other = (pending_task(a) for _ in range(2))
        a.commit()
        first = our_claim(a, [one])

        second = our_claim(b, [one, other])
        a.commit()
        b.commit()

        assert (first, second) == ([one], [other])
        assert our_claim(b, [one, other]) == []
