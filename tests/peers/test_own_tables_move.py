"""Each old table moves by its guide while its workers and producers run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.orm import Session

from tasks_app import disable_schedule
from tests.clock import until
from tests.peers.own_tables import AUDIT, always_fails, write
from tests.peers.own_tables_guide import EXAMPLES, IMPORTS, SCHEDULES, Move, functions, tables
from tests.peers.shops import Shop
from tests.pool.database import bare_database
from tests.servers import Databases


@pytest.fixture
def shop(databases: Databases, tmp_path: Path) -> Iterator[Shop]:
    with bare_database(databases, "own_tables_move", "SELECT 1") as database:
        shop = Shop(tmp_path, Path(sys.executable).parent, database.engine, "")
        shop.environment["TASKS_APP_IMPORTS"] = "shop.handlers,shop.faults"
        shop.write(handlers=IMPORTS + EXAMPLES, faults=FAULTS)
        yield shop


FAULTS = """
import os
import psycopg
from tasks_app import middleware
from tests.peers.own_tables import attempt

@middleware
def fail_some(ctx, call):
    if "schedule" not in ctx.headers:
        with psycopg.connect(os.environ["PGDSN"], autocommit=True) as connection:
            attempt(connection, ctx.headers["id"], "ours")
    return call()
"""
SEED = 400
TICK = 1_000_001
"""Of a schedule; an id at which nothing fails."""
BESIDE = {
    "notice": "INSERT INTO notice_waiting (task_no, content, skip)"
    " SELECT n, '{}', true FROM generate_series(2000001, 2000005) AS n",
    "cron_task": f"""
        INSERT INTO cron_task (id, task_name, cron_expression, payload, next_run_time)
        VALUES ({TICK}, 'report.write', '*/5 * * * * *', '{{"about": "tick"}}',
            date_bin('5s', now(), 'epoch') + interval '5s')""",
}
"""What waits beside the rows that are audited."""
SOON = """
    UPDATE task_pending SET due_at = now(), scan_at = now() WHERE id IN (
        SELECT id FROM task_pending WHERE state = 'PENDING' AND due_at > now()
        FOR UPDATE SKIP LOCKED)"""
"""Nobody waits for a level of two days."""
LEFT = "SELECT count(*) FROM task_pending, pg_sleep(0.3)"
PATIENCE_S = 120


class Load:
    """Programs of both sides, and what the guide's queries show meanwhile."""

    def __init__(self, move: Move, shop: Shop) -> None:
        self.move, self.shop, self.rows = move, shop, 0
        self.move_schedules = functions(SCHEDULES)["move_schedules"]

    @contextmanager
    def programs(self, role: str) -> Iterator[None]:
        with ExitStack() as running:
            for number in (1, 2):
                program = ("tests.peers.own_tables", role, self.move.name, f"{role}-{number}")
                running.enter_context(self.shop.serving("-m", *program))
            yield

    def moved(self) -> int:
        """Rows that a round has taken over."""
        rows = self.move.run("move")
        if self.move.name == "cron_task":
            with Session(self.shop.engine) as session:
                rows += self.move_schedules(session)
        return rows

    def look(self) -> None:
        """No row is seen twice, and none is gone."""
        [(rows, ids)] = self.move.rows(self.move.named("whole"))
        assert rows == ids >= self.rows
        self.rows = rows

    def grows(self, what: str, by: int) -> None:
        enough = self.move.sql(f"SELECT count(*) FROM {what}") + by
        until(lambda: self.move.sql(f"SELECT count(*) FROM {what}") >= enough, PATIENCE_S, what)

    def over(self) -> bool:
        self.look()
        self.move.sql(SOON)
        return not self.move.sql(LEFT)


@pytest.mark.test_all
@pytest.mark.timeout(500, method="thread")
@tables
def test_a_table_moves_while_its_workers_and_producers_run(name: str, shop: Shop) -> None:
    with (
        shop.engine.connect() as connection,
        Session(connection.execution_options(isolation_level="AUTOCOMMIT")) as session,
    ):
        move = Move(name, session)
        seeded(move, shop)
        first = (
            move.sql(f"SELECT next_run_time FROM cron_task WHERE id = {TICK}")
            if (name == "cron_task")
            else None
        )
        load = Load(move, shop)
        with shop.serving("-m", "tasks_app", "work", "-c", "2"):
            with load.programs("produce"):
                with load.programs("work"):
                    load.grows("attempt", 100)
                    move.run("common")
                    move.run("redirect")
                    while load.moved():
                        load.look()
                    load.grows("attempt WHERE by_whom = 'ours'", 20)
                while load.moved() or move.run("failed"):
                    load.look()
                load.grows("written", 50)
            if first:
                until(
                    lambda: move.sql("SELECT last_run_at FROM task_schedule"), PATIENCE_S, "its run"
                )
                disable_schedule(session, f"report.write.{TICK}")
            until(load.over, PATIENCE_S, "the end of all tasks")

        check_audit(move)
        if first:
            last = move.sql("SELECT last_run_at FROM task_schedule")
            ticks = move.sql("SELECT count(*) FROM report WHERE key = 'tick'")
            assert ticks == (last - first) / timedelta(seconds=5) + 1
        check_names(move)


def seeded(move: Move, shop: Shop) -> None:
    move.sql(move.old.schema + AUDIT)
    with psycopg.connect(shop.url) as connection:
        for number in range(SEED):
            write(connection, move.old, number)
    if move.name in BESIDE:
        move.sql(BESIDE[move.name])


def check_audit(move: Move) -> None:
    """Each row that was committed has its effect once, or as many attempts as it may have."""
    written = dict(move.rows("SELECT id, key FROM written"))
    failing = {row_id for row_id in written if always_fails(row_id)}
    effects = dict(move.rows(f"SELECT key, count(*) FROM {move.old.effect} GROUP BY key"))
    effects.pop("tick", None)
    assert effects == {key: 1 for row_id, key in written.items() if row_id not in failing}
    attempts = dict(move.rows(f"SELECT id, count(*) FROM attempt WHERE id <> {TICK} GROUP BY id"))
    assert attempts == {
        row_id: move.old.attempts if row_id in failing else 2 if row_id % 7 == 0 else 1
        for row_id in written
    }
    assert move.rows("SELECT DISTINCT by_whom FROM attempt ORDER BY 1") == [("ours",), ("theirs",)]
    errors_of = "SELECT (headers ->> 'id')::bigint FROM task_error"
    assert {row_id for (row_id,) in move.rows(errors_of)} == failing
    states = dict(move.rows("SELECT state, count(*) FROM task_completed GROUP BY state"))
    assert states.get("SKIPPED", 0) == (5 if move.name == "notice" else 0)


def check_names(move: Move) -> None:
    """The queries of completeness, and old readers under the old name."""
    state = "is_finished" if move.name == "delay_task" else "status"
    still, last = move.named("left").replace("status", state).split(";")[:2]
    over = {"async_task": [0], "notice": [], "cron_task": ["SUCCESS"], "delay_task": [1]}
    assert [row[0] for row in move.rows(still)] == over[move.name]
    assert move.sql(last) is not None
    before = move.rows(move.named("whole").replace(move.view, f"{move.old.table}_now"))
    move.sql(move.named("rename").replace(move.view, f"{move.old.table}_now"))
    assert move.rows(f"SELECT count(*), count(*) FROM {move.old.table}") == before
    with pytest.raises(errors.ObjectNotInPrerequisiteState):
        move.sql(move.old.insert % {"k": "'1'"})
