"""What a run writes commits with its outcome, or not at all: proofs that other setups repeat."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import text

from tasks_app.pool.runs.leases import rescue_expired
from tests.factory import LEASE
from tests.runtime.bench import Bench, effect

KILL_ME = text("SELECT pg_terminate_backend(pg_backend_pid())")


def test_effect_outcome_and_move_carry_one_transaction_id(bench: Bench) -> None:
    bench.writing()
    task_id = bench.run_one()
    mine = bench.sql("SELECT xmin::text FROM effect WHERE task_id = :id", id=task_id)
    move = bench.sql("SELECT xmin::text FROM task_completed WHERE id = :id", id=task_id)
    assert mine == move


def test_effects_roll_back_when_the_handler_raises(bench: Bench) -> None:
    @bench.handler(retry="0s,0s")
    def h(ctx: Any) -> None:
        effect(ctx)
        ctx.session.flush()
        raise ValueError

    task_id = bench.run_one()
    assert (bench.effects(task_id), bench.state(task_id)) == (0, "FAILED")


def test_effects_roll_back_when_the_lease_was_lost_meanwhile(bench: Bench) -> None:
    """Interleaving: A runs; rescue; B claims, runs, commits; A wants to commit."""
    started, go_on = threading.Event(), bench.event()

    @bench.handler()
    def h(ctx: Any) -> None:
        effect(ctx, f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            started.set()
            go_on.wait(20)

    task_id = bench.create()
    first = bench.child(start=False)
    running = bench.beside(first.execute, [task_id])
    assert started.wait(10)
    with bench.engine.begin() as connection:
        future = datetime.now(UTC) + timedelta(hours=1)
        rescued = rescue_expired(connection, lease=LEASE, max_crashes=5, now=future)
    bench.sql("UPDATE task_pending SET due_at = statement_timestamp()")

    bench.execute([task_id])
    go_on.set()
    running.join(10)

    assert set(rescued) == {task_id}
    assert bench.state(task_id) == "SUCCEEDED"
    assert bench.sql("SELECT string_agg(note, ', ') FROM effect") == "attempt 2"
    assert first.inflight.empty
