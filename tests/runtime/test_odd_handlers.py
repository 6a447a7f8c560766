"""Any sequence of odd handlers on one child: effects stand if and only if their run succeeded."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg import Error as DriverError
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tests.clock import until
from tests.runtime.bench import Bench, warm

EXAMPLES = int(os.environ.get("STATEFUL_EXAMPLES", "0"))
"""So many at random; 0: always the same ones, in every `make test`."""
QUICK = 20
SETTINGS = settings(
    max_examples=EXAMPLES or QUICK,
    derandomize=not EXAMPLES,
    phases=(Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,),
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
LOOK = text("""
    SELECT coalesce(current_setting('app.tenant', true), ''), current_user = session_user,
        current_setting('statement_timeout'), current_setting('search_path'),
        current_setting('transaction_isolation'), current_setting('transaction_read_only'),
        (SELECT count(*) FROM pg_listening_channels()),
        (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
        to_regclass('pg_temp.odd') IS NULL,
        (SELECT count(*) FROM pg_prepared_statements WHERE from_sql),
        (SELECT count(*) FROM pg_cursors WHERE is_holdable)
""")
WAYS = ["plain", "threads"]


@dataclass
class Run:
    """One run, as its handler knows it."""

    ctx: Any
    kept: list[tuple[Any, Callable[[], Any]]]
    """What runs, by their contexts, kept of their connections."""
    rows: int = 0
    stale_writes: list[int] = field(default_factory=list)

    @property
    def values(self) -> dict[str, int]:
        return {"id": self.ctx.task_id}

    @property
    def driver(self) -> Any:
        return self.ctx.connection.connection.driver_connection


Odd = Callable[[Run], None]


@dataclass(frozen=True)
class Plan:
    steps: tuple[Odd, ...]
    last: Odd | None
    """What its fate depends on."""

    def __repr__(self) -> str:
        return "+".join(f.__name__ for f in (*self.steps, *filter(None, [self.last])))


def saying(name: str, statement: str, through: str = "session") -> Odd:
    """Return a step of that name, which executes this."""

    def step(run: Run) -> None:
        if through == "driver":
            run.driver.execute(statement)
        else:
            values = run.values if ":id" in statement else {}
            getattr(run.ctx, through).execute(text(statement), values)

    step.__name__ = name
    return step


deferred_row = saying("deferred_row", "INSERT INTO odd_late VALUES (:id)")
error = saying("error", "SELECT 1 / 0")
advisory_lock = saying("advisory_lock", "SELECT pg_advisory_lock(:id)")
temp_table = saying("temp_table", "CREATE TEMP TABLE odd (i int)")
prepare = saying("prepare", "PREPARE odd AS SELECT 1", "driver")
hold_cursor = saying("hold_cursor", "DECLARE held CURSOR WITH HOLD FOR SELECT 1", "driver")


def keep(run: Run) -> None:
    connection, driver = run.ctx.connection, run.driver
    cursor, session = driver.cursor(), run.ctx.session
    for late in (
        lambda: connection.execute(text(WRITE), {"id": -1}),
        lambda: driver.execute(DRIVER_WRITE, (-1,)),
        lambda: cursor.execute(DRIVER_WRITE, (-1,)),
        lambda: session.execute(text(WRITE), {"id": -1}),
    ):
        run.kept.append((run.ctx, late))


def write(run: Run) -> None:
    run.ctx.session.execute(text(WRITE), run.values)
    run.rows += 1


def write_by_connection(run: Run) -> None:
    run.ctx.connection.execute(text(WRITE), run.values)
    run.rows += 1


def write_by_driver(run: Run) -> None:
    run.driver.execute(DRIVER_WRITE, (run.ctx.task_id,))
    run.rows += 1


def write_many_by_driver(run: Run) -> None:
    run.driver.cursor().executemany(DRIVER_WRITE, [(run.ctx.task_id,)] * 3)
    run.rows += 3


def copy(run: Run) -> None:
    with run.ctx.connection.connection.cursor().copy("COPY effect FROM STDIN") as rows:
        rows.write_row((run.ctx.task_id, ""))
    run.rows += 1


def block(run: Run) -> None:
    with run.driver.transaction():
        write_by_driver(run)


def pipeline(run: Run) -> None:
    with run.driver.pipeline():
        write_by_driver(run)


def server_cursor(run: Run) -> None:
    with run.driver.cursor("odd") as cursor:
        cursor.execute("SELECT generate_series(1, 5)").fetchone()


def savepoint(run: Run) -> None:
    with run.ctx.session.begin_nested():
        write(run)


def lost_savepoint(run: Run) -> None:
    nested = run.ctx.session.begin_nested()
    run.ctx.session.execute(text(WRITE), run.values)
    nested.rollback()


def open_savepoint(run: Run) -> None:
    run.ctx.connection.begin_nested()
    write_by_connection(run)


def roll_back(run: Run) -> None:
    run.ctx.session.rollback()
    run.rows = 0


def roll_back_by_driver(run: Run) -> None:
    if run.ctx.connection.in_nested_transaction():
        return  # SQLAlchemy would release a savepoint that is gone, and the run would fail
    run.driver.rollback()
    run.rows = 0


def error_in_savepoint(run: Run) -> None:
    with suppress(DBAPIError), run.ctx.session.begin_nested():
        run.ctx.session.execute(text("SELECT 1 / 0"))


def refused_session_commit(run: Run) -> None:
    with suppress(RuntimeError):
        run.ctx.session.commit()


def set_role(run: Run) -> None:
    write(run)
    run.ctx.session.execute(text("SET ROLE pg_monitor"))


def use_kept(run: Run) -> None:
    for ctx, late in run.kept:
        if not ctx._over:
            continue  # in its own run, or in another thread's, it may
        try:
            late()
        except Exception:
            continue
        run.stale_writes.append(ctx.task_id)


WRITE = "INSERT INTO effect VALUES (:id, '')"
DRIVER_WRITE = "INSERT INTO effect VALUES (%s, '')"
HARMLESS: list[Odd] = [
    *(write, write_by_connection, write_by_driver, write_many_by_driver, copy, block, pipeline),
    *(server_cursor, savepoint, lost_savepoint, open_savepoint, roll_back, roll_back_by_driver),
    *(error_in_savepoint, refused_session_commit),
    saying("set_in_session", "SET app.tenant = 'seven'"),
    saying("set_local", "SET LOCAL statement_timeout = '9min'"),
    saying("set_by_driver", "SELECT set_config('app.tenant', 'seven', false)", "driver"),
    set_role,
    saying("set_path", "SET LOCAL search_path TO public, pg_temp", "connection"),
    saying("listen", "LISTEN odd", "driver"),
    *(advisory_lock, temp_table, prepare, hold_cursor),
    *(deferred_row, use_kept),
]
"""After these a run succeeds."""


def swallowed_error(run: Run) -> None:
    with suppress(DBAPIError):
        error(run)


def swallowed_error_by_driver(run: Run) -> None:
    with suppress(DriverError):
        run.driver.execute("SELECT 1 / 0")


def swallowed_commit(run: Run) -> None:
    with suppress(RuntimeError):
        run.ctx.connection.commit()


def swallowed_commit_by_driver(run: Run) -> None:
    with suppress(RuntimeError):
        run.driver.commit()


def autocommit(run: Run) -> None:
    run.driver.autocommit = True


def two_phases(run: Run) -> None:
    run.driver.tpc_begin(run.driver.xid(1, "odd", "odd"))


def close(run: Run) -> None:
    write_by_connection(run)
    run.ctx.connection.close()


def close_driver(run: Run) -> None:
    run.driver.close()


def broken_deferred_rows(run: Run) -> None:
    deferred_row(run)
    deferred_row(run)


def raises(run: Run) -> None:
    write(run)
    raise ValueError(run.ctx.task_id)


FAILING: list[Odd] = [
    *(error, swallowed_error, swallowed_error_by_driver),
    *(saying("commit", "COMMIT", "connection"), swallowed_commit),
    *(swallowed_commit_by_driver, autocommit, two_phases, close, close_driver),
    *(broken_deferred_rows, raises),
]
"""After one of these it fails, charged, and nothing stands."""


def hidden_commit(run: Run) -> None:
    write(run)
    run.ctx.session.execute(text("SELECT $$a;b$$; COMMIT"))


def hidden_commit_and_begin(run: Run) -> None:
    write(run)
    run.driver.execute("SELECT $$a;b$$; COMMIT; BEGIN")


ENDING: list[Odd] = [hidden_commit, hidden_commit_and_begin]
"""After one of these it fails, and what it had written may stand."""


def die(run: Run) -> None:
    write(run)
    run.ctx.session.execute(text("RESET ROLE"))  # of pg_monitor's this would be refused
    run.ctx.session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))


def swallowed_death(run: Run) -> None:
    with suppress(DBAPIError):
        die(run)


LOSING: list[Odd] = [die, swallowed_death]
"""After one of these nothing stands, and nobody is charged."""
PLANS = st.builds(
    Plan,
    st.lists(st.sampled_from([*HARMLESS, keep]), max_size=4, unique=True).map(tuple),
    st.one_of(st.none(), st.none(), st.sampled_from([*FAILING, *ENDING, *LOSING])),
)


@pytest.fixture
def odd(bench: Bench) -> Bench:
    bench.sql("CREATE TABLE odd_late (i bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    bench.at_end(lambda: bench.sql("DROP TABLE odd_late"))
    bench.sql("GRANT ALL ON effect, odd_late TO pg_monitor")
    return bench


def declare(bench: Bench, plans: dict[int, Plan], runs: dict[int, Run], seen: list[Any]) -> None:
    """A handler that does what is planned for their tasks."""
    kept: list[tuple[Any, Callable[[], Any]]] = []

    def h(ctx: Any, payload: dict[str, Any]) -> int:
        run = runs[payload["n"]] = Run(ctx, kept)
        seen.append(tuple(ctx.connection.execute(LOOK).one()))
        plan = plans[payload["n"]]
        for step in (*plan.steps, *filter(None, [plan.last])):
            step(run)
        return run.rows

    bench.handler(max_attempts=1)(h)


@pytest.mark.test_all
@pytest.mark.timeout(0)
@pytest.mark.parametrize("way", WAYS)
def test_effects_stand_if_and_only_if_their_run_succeeded(odd: Bench, way: str) -> None:
    bench = odd
    plans: dict[int, Plan] = {}
    runs: dict[int, Run] = {}
    seen: list[Any] = []
    declare(bench, plans, runs, seen)
    counter = iter(range(10**9))

    @SETTINGS
    @given(st.lists(PLANS, min_size=2, max_size=7))
    def check(drawn: list[Plan]) -> None:
        numbers = [next(counter) for _ in drawn]
        plans.update(zip(numbers, drawn, strict=True))
        seen.clear()
        ids = [bench.create(payload={"n": n}) for n in numbers]
        threads = 2 if way == "threads" else 0
        # On a busy machine a run may take a second; then what waits behind it would go back.
        child = warm(bench.child(extra_threads=threads, give_back_after=60))
        child.execute(ids)
        until(lambda: child.inflight.empty, 20)
        child.stop()
        bench.children.remove(child)
        for task_id, number, plan in zip(ids, numbers, drawn, strict=True):
            judge(bench, task_id, plan)
            assert not runs[number].stale_writes, plan
        assert bench.effects(-1) == 0
        assert len(set(seen)) == 1, seen
        bench.sql("DELETE FROM task_pending")

    check()


def judge(bench: Bench, task_id: int, plan: Plan) -> None:
    """Its fate is what its plan says, and its effects stand accordingly."""
    task, rows = bench.task(task_id), bench.effects(task_id)
    about = (plan, task.state.value, task.error, rows)
    if plan.last in ENDING:
        assert task.state.value == "FAILED", about
        assert "ended the transaction" in (task.error or ""), about
        return
    if plan.last is None:
        assert task.state.value == "SUCCEEDED", about
        assert rows == task.result, about
        return
    assert rows == 0, about
    if plan.last in LOSING:
        assert (task.state.value, task.failures) == ("PENDING", 0), about
        return
    assert (task.state.value, task.failures, task.crashes) == ("FAILED", 1, 0), about
    if plan.last is raises:
        assert f"ValueError: {task_id}" in (task.error or ""), about
