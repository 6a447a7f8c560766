"""Short runs in a row: a COMMIT begins the next one's transaction, and nobody notices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app.runtime import pace
from tasks_app.runtime.chained import Chained
from tests.runtime.bench import EFFECT, Bench
from tests.runtime.test_sprint import carry_out
from tests.waiting import until

pytestmark = pytest.mark.timeout(60, method="thread")
OPEN = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND state LIKE 'idle in transaction%'
"""
SETTINGS = text(
    "SELECT current_setting('transaction_read_only'), current_setting('transaction_isolation')"
)


def effect(ctx: Any) -> None:
    """Through the connection: a session gives it back, and ends what is open."""
    ctx.connection.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "FAST_S", 10.0)


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The backends' process ids, one for each COMMIT that began another transaction."""
    seen: list[int] = []
    plain = Chained.end_with

    def noted(connection: Chained, last: Any, *, chain: bool, leave: bool = False) -> None:
        plain(connection, last, chain=chain, leave=leave)
        if chain:
            seen.append(connection.info.backend_pid)

    monkeypatch.setattr(Chained, "end_with", noted)
    return seen


def test_each_run_but_the_last_of_a_row_begins_the_next_ones(
    bench: Bench, chains: list[int]
) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.connection.in_transaction())
        effect(ctx)

    ids = [bench.create() for _ in range(5)]

    carry_out(bench, ids)

    assert bench.runs == [False] * 5  # as on any connection
    assert len(chains) == 4
    assert [bench.effects(i) for i in ids] == [1] * 5
    assert bench.states(ids) == ["SUCCEEDED"] * 5
    until(lambda: bench.sql(OPEN) == 0)


def test_a_run_that_wants_no_transaction_leaves_none_open(bench: Bench, chains: list[int]) -> None:
    @bench.handler()
    def h(ctx: Any, payload: dict[str, int]) -> None:
        if payload["n"] == 0:
            effect(ctx)

    ids = [bench.create(payload={"n": n}) for n in range(3)]
    child_stays = bench.child()
    for _ in range(30):
        child_stays.runner.pace.learn("t", 0.0001)

    child_stays.execute(None, ids)

    (pid,) = chains
    assert bench.sql("SELECT state FROM pg_stat_activity WHERE pid = :pid", pid=pid) == "idle"
    assert bench.effects(ids[0]) == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda ctx: ctx.connection.execute(text("SET TRANSACTION READ ONLY")),
        lambda ctx: ctx.connection.execution_options(isolation_level="SERIALIZABLE"),
        lambda ctx: ctx.connection.begin_nested(),
        lambda ctx: ctx.connection.invalidate(),
        lambda ctx: ctx.session.execute(text("SET TRANSACTION READ ONLY")),
    ],
)
def test_what_one_run_sets_or_leaves_open_the_next_does_not_meet(bench: Bench, spoil: Any) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict[str, int]) -> None:
        bench.runs.append((payload["n"], ctx.connection.in_nested_transaction()))
        bench.runs.append(tuple(ctx.connection.execute(SETTINGS).one()))
        if payload["n"] == 1:
            ctx.connection.rollback()
            spoil(ctx)
        else:
            effect(ctx)

    ids = [bench.create(payload={"n": n}) for n in range(4)]

    carry_out(bench, ids)

    clean = ("off", "read committed")
    assert sorted(bench.runs, key=str) == sorted(
        [*((n, False) for n in range(4)), *[clean] * 4], key=str
    )
    assert [bench.effects(i) for i in ids] == [1, 0, 1, 1]


@pytest.mark.parametrize(
    ("through", "set_it"),
    [
        ("connection", lambda connection, option: connection.execution_options(**option)),
        ("session", lambda session, option: session.connection(execution_options=option)),
    ],
)
@pytest.mark.parametrize(
    ("option", "value", "seen"),
    [
        ("isolation_level", "SERIALIZABLE", ("off", "serializable")),
        ("postgresql_readonly", True, ("on", "read committed")),
    ],
)
def test_a_run_in_a_row_may_choose_how_its_transaction_begins(
    bench: Bench, through: str, set_it: Any, option: str, value: Any, seen: Any
) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict[str, int]) -> None:
        if payload["n"] in {2, 3}:
            connection = set_it(getattr(ctx, through), {option: value})
            bench.runs.append(tuple(connection.execute(SETTINGS).one()))
            getattr(ctx, through).rollback()
        else:
            effect(ctx)

    ids = [bench.create(payload={"n": n}) for n in range(6)]

    carry_out(bench, ids)

    assert bench.runs == [seen] * 2
    assert [bench.effects(i) for i in ids] == [1, 1, 0, 0, 1, 1]
    assert bench.states(ids) == ["SUCCEEDED"] * 6


def test_a_run_that_raises_undoes_its_own_alone(bench: Bench, chains: list[int]) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict[str, int]) -> None:
        effect(ctx)
        if payload["n"] == 1:
            raise ValueError
        if payload["n"] == 2:
            ctx.connection.execute(text("SELECT 1 / 0"))

    ids = [bench.create(payload={"n": n}) for n in range(5)]

    carry_out(bench, ids)

    assert [bench.effects(i) for i in ids] == [1, 0, 0, 1, 1]
    assert bench.states(ids) == ["SUCCEEDED", "FAILED", "FAILED", "SUCCEEDED", "SUCCEEDED"]
    assert chains


def test_a_commit_that_is_refused_is_its_own_runs_failure(bench: Bench, chains: list[int]) -> None:
    bench.sql(
        "CREATE TABLE late (i bigint CONSTRAINT late_once UNIQUE DEFERRABLE INITIALLY DEFERRED)"
    )
    bench.at_end(lambda: bench.sql("DROP TABLE late"))

    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict[str, int]) -> None:
        effect(ctx)
        ctx.connection.execute(text("INSERT INTO late VALUES (:i)"), {"i": payload["n"] // 2})

    ids = [bench.create(payload={"n": n}) for n in (0, 1, 2, 3, 4)]

    carry_out(bench, ids)

    assert [bench.effects(i) for i in ids] == [1, 0, 1, 0, 1]
    assert bench.states(ids) == ["SUCCEEDED", "FAILED", "SUCCEEDED", "FAILED", "SUCCEEDED"]
    assert len(chains) == 4


@pytest.mark.parametrize("touches", [True, False])
def test_a_connection_that_is_lost_between_two_runs_costs_no_attempt(
    bench: Bench, chains: list[int], touches: bool
) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict[str, int]) -> None:
        if payload["n"] == 1 and "killed" not in bench.runs:
            until(lambda: bench.effects(ids[0]))  # its COMMIT took place
            bench.runs.append("killed")
            assert bench.sql("SELECT pg_terminate_backend(:pid, 5000)", pid=chains[-1])
        if payload["n"] == 0 or touches:
            effect(ctx)
        bench.runs.append(payload["n"])

    ids = [bench.create(payload={"n": n}) for n in range(2)]

    carry_out(bench, ids)

    assert bench.effects(ids[0]) == 1
    assert bench.states(ids) == ["SUCCEEDED"] * 2
    assert bench.attempts(ids[1]) == []
