"""Whatever handlers do with their connection: their effects stand if and only if they succeeded."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from psycopg import OperationalError
from psycopg.pq import TransactionStatus
from psycopg.types.string import StrDumper
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from tasks_app import create_task
from tasks_app.domain.creation import NewTask
from tasks_app.runtime.api.groups import create_group
from tasks_app.runtime.handler_db import handler_connections
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tests.clock import until
from tests.runtime.bench import EFFECT, Bench, carry_out, effect, run_many, warm
from tests.runtime.handler_db.kept_connections import (  # noqa: F401  fixtures
    INSERT,
    driver,
    test_an_end_past_our_cursors_is_seen,
    test_what_a_run_kept_writes_into_no_later_run,
)
from tests.runtime.handler_db.twins import twin
from tests.tiers import few

pytestmark = pytest.mark.timeout(60, method="thread")


def by_cursor(ctx: Any) -> None:
    ctx.connection.connection.cursor().execute(INSERT, (ctx.task_id,))


def by_driver(ctx: Any) -> None:
    driver(ctx).execute(INSERT, (ctx.task_id,))


def by_copy(ctx: Any) -> None:
    with driver(ctx).cursor().copy("COPY effect FROM STDIN") as copy:
        copy.write_row((ctx.task_id, ""))


def by_block(ctx: Any) -> None:
    with driver(ctx).transaction():
        by_driver(ctx)


def by_pipeline(ctx: Any) -> None:
    with driver(ctx).pipeline():
        by_driver(ctx)


def by_stream(ctx: Any) -> None:
    assert list(driver(ctx).cursor().stream("SELECT 1")) == [(1,)]
    by_driver(ctx)


def by_pipeline_that_reads(ctx: Any) -> None:
    with driver(ctx).pipeline():
        driver(ctx).execute("SELECT 1")
        assert driver(ctx).execute("SELECT 2").fetchone() == (2,)
    by_driver(ctx)


def by_named_cursor(ctx: Any) -> None:
    with driver(ctx).cursor("rows") as cursor:
        assert cursor.execute("SELECT 1").fetchall() == [(1,)]
    by_driver(ctx)


def behind_a_notification(ctx: Any) -> None:
    assert not list(driver(ctx).notifies(timeout=0))
    by_driver(ctx)


def by_many(ctx: Any) -> None:
    ctx.connection.execute(text(EFFECT), [{"id": ctx.task_id, "note": ""}])


def by_many_of_the_driver(ctx: Any) -> None:
    values = [{"id": ctx.task_id}]
    ctx.connection.exec_driver_sql("INSERT INTO effect VALUES (%(id)s, '')", values)


def by_savepoint(ctx: Any) -> None:
    savepoint = ctx.connection.begin_nested()
    by_driver(ctx)
    savepoint.rollback()
    by_driver(ctx)


def by_mistake(ctx: Any) -> None:
    with pytest.raises(DBAPIError, match="division by zero"):
        ctx.connection.execute(text("SELECT 1 / :zero"), {"zero": 0})
    ctx.session.rollback()
    effect(ctx)


def by_child(ctx: Any) -> None:
    create_task(driver(ctx), "child", biz_key=f"of:{ctx.task_id}")


def by_child_of_session(ctx: Any) -> None:
    create_task(ctx.session, "child", biz_key=f"of:{ctx.task_id}")


def by_session(ctx: Any) -> None:
    effect(ctx)


CHILDREN = [by_child, by_child_of_session]
WAYS = [
    *(by_cursor, by_driver, by_copy, by_block, by_pipeline, by_session, *CHILDREN),
    *(by_stream, by_pipeline_that_reads, by_named_cursor, behind_a_notification),
    *(by_many, by_many_of_the_driver, by_savepoint, by_mistake),
]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("through", WAYS, ids=lambda way: way.__name__)
def test_writes_by_any_way_stand_if_the_run_succeeds(
    bench: Bench, through: Callable[[Any], None], *, is_async: bool
) -> None:
    def h(ctx: Any, payload: dict[str, int]) -> None:
        through(ctx)
        if payload["n"] % 2:
            raise ValueError

    bench.handler(max_attempts=1)(twin(h, is_async=is_async))
    ids = run_many(bench, 8)
    assert bench.states(ids) == ["SUCCEEDED", "FAILED"] * 4
    count = "SELECT count(*) FROM task_pending WHERE biz_key = 'of:' || :id"
    stands = [bench.sql(count, id=i) if through in CHILDREN else bench.effects(i) for i in ids]
    assert stands == [1, 0] * 4


def test_who_swallows_that_a_commit_was_refused_loses_nothing_unseen(bench: Bench) -> None:
    """SQLAlchemy rolls back behind a COMMIT that raises: so its run has failed."""

    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict[str, int]) -> None:
        effect(ctx)
        commits = [ctx.session.commit, ctx.connection.commit, driver(ctx).commit]
        with pytest.raises(RuntimeError, match="commits together"):
            commits[payload["n"]]()

    ids = run_many(bench, 3)

    assert bench.states(ids) == ["SUCCEEDED", "FAILED", "FAILED"]
    assert [bench.effects(i) for i in ids] == [1, 0, 0]
    assert "commits together" in bench.error(ids[1])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_swallowed_error_that_broke_it_is_named(bench: Bench, is_async: bool) -> None:
    def h(ctx: Any, payload: dict[str, int]) -> None:
        effect(ctx)
        with pytest.raises(DBAPIError), ctx.session.begin_nested():
            ctx.session.execute(text("SELECT 'a word'::int"))
        for _ in range(2 * payload["n"]):  # the second one hears that the first broke it
            with pytest.raises(DBAPIError):
                ctx.connection.execute(text("SELECT 1 / :n"), [{"n": 1}, {"n": 0}])

    bench.handler(max_attempts=1)(twin(h, is_async=is_async))

    ids = run_many(bench, 2)

    assert [bench.effects(i) for i in ids] == [1, 0]
    said = "RuntimeError: The handler swallowed a database error that broke its transaction: "
    assert bench.error(ids[1]).startswith(f"{said}division by zero. Let it out, or")


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO effect VALUES ({id}, $$a$$); COMMIT",
        "INSERT INTO effect VALUES ({id}, $$a$$); COMMIT; BEGIN",
        "INSERT INTO effect VALUES ({id}, $$a$$); COMMIT; SELECT 1/0",
        "SELECT $$a$$; ROLLBACK; INSERT INTO effect VALUES ({id}, $$b$$)",
    ],
)
@pytest.mark.parametrize("first", few(1, [True, False]))
def test_who_ends_the_transaction_behind_a_quote_fails_once_and_for_all(
    bench: Bench, statement: str, *, first: bool, is_async: bool
) -> None:
    """What he wrote stands, so that another attempt would write it again."""

    def h(ctx: Any) -> None:
        if not first:
            ctx.session.execute(text("SELECT 1"))
        ctx.session.execute(text(statement.format(id=ctx.task_id)))

    bench.handler(retry="0s,0s")(twin(h, is_async=is_async))
    task_id = bench.run_one()
    assert (bench.state(task_id), bench.effects(task_id)) == ("FAILED", 1)
    assert "ended the transaction" in bench.error(task_id)


def test_a_sessions_rollback_takes_back_what_was_written_by_any_way(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any, payload: dict[str, int]) -> None:
        if payload["n"] % 2:
            by_session(ctx)
        by_driver(ctx)
        ctx.session.rollback()
        by_copy(ctx)

    ids = run_many(bench, 4)
    assert bench.states(ids) == ["SUCCEEDED"] * 4
    assert [bench.effects(i) for i in ids] == [1] * 4


SET_IN_A_FUNCTION = """
    CREATE FUNCTION pick_tenant() RETURNS void LANGUAGE sql AS
    $$ SELECT set_config('app.tenant', 'seven', false) $$
"""
LEAKS = {
    "function": "SELECT pick_tenant()",
    "capitals": "SELECT SET_CONFIG('app.tenant', 'seven', FALSE)",
    "second": "SELECT 1; SET app.tenant = 'seven'",
    "local": "SET LOCAL app.tenant = 'seven'",
    "role": "SET ROLE pg_monitor",
    "local role": "SET LOCAL ROLE pg_monitor",
    "path": "SET LOCAL search_path TO nowhere",
    "lock timeout": "SET lock_timeout = 1",
    "listen": "LISTEN somewhere",
    "lock": "SELECT pg_advisory_lock(4711)",
    "temp": "CREATE TEMP TABLE left_behind ()",
    "into temp": "SELECT 1 AS i INTO TEMP left_behind",
    "prepare": "PREPARE left_behind AS SELECT 1",
    "cursor": "DECLARE left_behind CURSOR WITH HOLD FOR SELECT 1",
}
WAYS_AND_LEAKS = [(way, leak) for way in ("session", "driver", "async") for leak in LEAKS]
LOOK = text("""
    SELECT coalesce(current_setting('app.tenant', true), '') AS tenant,
        current_user = session_user AS role, current_setting('lock_timeout') AS timeout,
        current_setting('search_path') AS path,
        (SELECT count(*) FROM pg_listening_channels()) AS channels,
        (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())
            AS locks,
        to_regclass('pg_temp.left_behind') IS NULL AS temp,
        (SELECT count(*) FROM pg_prepared_statements WHERE name = 'left_behind') AS prepared,
        (SELECT count(*) FROM pg_cursors WHERE name = 'left_behind') AS cursors
""")


def declare(bench: Bench, way: str, leak: str, *, fails: bool) -> dict[int, Any]:
    """Each second run leaves something, and fails if it should. What each saw last is returned."""
    seen: dict[int, Any] = {}

    def h(ctx: Any, payload: dict[str, int]) -> None:
        odd = payload["n"] % 2
        if way == "driver":
            seen[payload["n"]] = tuple(driver(ctx).execute(LOOK.text).fetchone())
            by_driver(ctx)
        else:
            seen[payload["n"]] = tuple(ctx.session.execute(LOOK).one())
            effect(ctx)
        if odd and way == "driver":
            driver(ctx).execute(leak)
        elif odd:
            ctx.session.execute(text(leak))
        if odd and fails:
            raise ValueError

    bench.handler(max_attempts=1)(twin(h, is_async=way == "async"))
    return seen


@pytest.mark.parametrize(("way", "leak"), few(14, WAYS_AND_LEAKS))
@pytest.mark.parametrize("fails", [False, pytest.param(True, marks=pytest.mark.test_all)])
def test_the_next_run_meets_no_leftovers(bench: Bench, leak: str, way: str, *, fails: bool) -> None:
    bench.sql(SET_IN_A_FUNCTION)
    bench.at_end(lambda: bench.sql("DROP FUNCTION pick_tenant"))
    seen = declare(bench, way, LEAKS[leak], fails=fails)
    child = bench.child(async_connections=1, async_concurrency=1)
    for _ in range(30):
        child.executor.run_times.learn("t", 0.0001)
    ids = [bench.create(payload={"n": n}) for n in range(4)]

    child.execute(ids)

    until(lambda: child.inflight.empty)
    assert set(seen.values()) == {seen[0]}
    assert seen[0][:2] == ("", True)
    ends = ["SUCCEEDED", "FAILED" if fails else "SUCCEEDED"] * 2
    assert bench.states(ids) == ends
    assert [bench.effects(i) for i in ids] == [int(end == "SUCCEEDED") for end in ends]


CURRENT_TENANT = text("SELECT coalesce(current_setting('app.tenant', true), '')")


@pytest.fixture
def looking(bench: Bench) -> Iterator[None]:
    """While the fixture lasts, a deferred trigger notes the tenant of its run, and sets another."""
    bench.sql("""
        CREATE TABLE late (i bigint UNIQUE DEFERRABLE INITIALLY DEFERRED);
        CREATE TABLE seen (id bigint, tenant text);
        CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO seen VALUES (new.task_id, current_setting('app.tenant', true));
            PERFORM set_config('app.tenant', 'of the trigger', false);
            RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER late AFTER INSERT ON effect
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION look()
    """)
    yield
    bench.sql("DROP TRIGGER late ON effect; DROP FUNCTION look; DROP TABLE seen, late")


@pytest.mark.usefixtures("looking")
@pytest.mark.parametrize("in_group", [False, True])
@pytest.mark.parametrize("name", ["sync", "async"])
def test_a_deferred_trigger_sees_its_runs_set(bench: Bench, name: str, *, in_group: bool) -> None:
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.session.scalar(CURRENT_TENANT))
        ctx.session.execute(text(f"SET LOCAL app.tenant = '{ctx.task_id}'"))
        effect(ctx)
        for _ in range(2):  # twice for a moment
            ctx.session.execute(text("INSERT INTO late VALUES (1)"))
        ctx.session.execute(text("DELETE FROM late"))

    bench.handler(max_attempts=1)(twin(h, is_async=name == "async"))
    if in_group:
        with bench.engine.begin() as connection:
            members = [NewTask("t") for _ in range(4)]
            ids = list(create_group(connection, members, then=NewTask("then")).task_ids)
    else:
        ids = [bench.create() for _ in range(4)]

    carry_out(bench, ids)

    assert bench.states(ids) == ["SUCCEEDED"] * 4
    seen = [bench.sql("SELECT tenant FROM seen WHERE id = :id", id=i) for i in ids]
    assert seen == [str(i) for i in ids]
    assert bench.runs == [""] * 4


def test_an_advisory_lock_of_the_session_guards_until_the_commit(bench: Bench) -> None:
    """It ends with its run, but not before what it guards can be seen."""

    @bench.handler()
    def h(ctx: Any) -> None:
        ctx.session.execute(text("SELECT pg_advisory_lock(4711)"))
        bench.runs.append(ctx.session.scalar(text("SELECT count(*) FROM effect")))
        effect(ctx)

    carry_out(bench, [bench.create() for _ in range(12)], extra_threads=3)
    assert sorted(bench.runs) == list(range(12))


SET_ISOLATION = text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def choose_by_options(ctx: Any) -> Any:
    ctx.connection.execution_options(isolation_level="REPEATABLE READ")
    return ctx.connection


def choose_by_session(ctx: Any) -> Any:
    return ctx.session.connection(execution_options={"isolation_level": "SERIALIZABLE"})


def choose_by_words(ctx: Any) -> Any:
    ctx.session.execute(SET_ISOLATION)
    return ctx.session


@pytest.mark.test_all
@pytest.mark.parametrize("choose", [choose_by_options, choose_by_session, choose_by_words])
def test_a_run_in_a_snapshot_outlives_renewals(bench: Bench, choose: Callable[[Any], Any]) -> None:
    """A renewal behind its snapshot would make its settle fail, at each attempt."""

    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        through = choose(ctx)
        through.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})
        before = beats()
        until(lambda: beats() > before + 2, 20)

    def beats() -> int:
        return len(renewals)

    renewals: list[int] = []
    child = bench.child(lease=1.5)
    held = child.inflight.held  # each renewal asks
    child.inflight.held = lambda: (renewals.append(1), held())[1]  # type: ignore[method-assign]
    task_id = bench.create()

    child.execute([task_id])

    assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", 1)


ROW = "SELECT count(*) FROM (SELECT FROM task_pending WHERE id = :id FOR UPDATE SKIP LOCKED) AS row"


@pytest.mark.parametrize("through", ["session", "connection", "async"])
def test_a_snapshot_on_a_second_connection_locks_the_row(bench: Bench, through: str) -> None:
    def h(ctx: Any) -> None:
        used = ctx.connection if through == "connection" else ctx.session
        with pytest.raises(DBAPIError):
            used.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        used.rollback()
        used.execute(SET_ISOLATION)
        used.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})
        bench.runs.append(bench.sql(ROW, id=ctx.task_id))

    bench.handler(max_attempts=1)(twin(h, is_async=through == "async"))
    task_id = bench.run_one()

    assert (bench.state(task_id), bench.effects(task_id), bench.runs) == ("SUCCEEDED", 1, [0])


def leave_a_copy(ctx: Any) -> None:
    bench_keeps.append(copy := driver(ctx).cursor().copy("COPY effect FROM STDIN"))
    copy.__enter__()


def leave_a_stream(ctx: Any) -> None:
    bench_keeps.append(rows := driver(ctx).cursor().stream("SELECT generate_series(1, 9)"))
    next(rows)


def leave_a_pipeline(ctx: Any) -> None:
    bench_keeps.append(pipeline := driver(ctx).pipeline())
    pipeline.__enter__()
    by_driver(ctx)


bench_keeps: list[Any] = []


@pytest.mark.filterwarnings(  # psycopg 3.2 complains of a COPY that it cannot end any more
    "ignore:Exception ignored in. <generator object Cursor.copy"
)
@pytest.mark.parametrize("leave", [leave_a_copy, leave_a_stream, leave_a_pipeline])
def test_what_is_left_open_fails_by_its_cause(bench: Bench, leave: Callable[[Any], None]) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict[str, int]) -> None:
        if payload["n"] == 1:
            leave(ctx)
        else:
            effect(ctx)

    ids = run_many(bench, 3)
    bench_keeps.clear()

    assert bench.states(ids) == ["SUCCEEDED", "FAILED", "SUCCEEDED"]
    assert [bench.effects(i) for i in ids] == [1, 0, 1]
    assert "left a COPY" in bench.error(ids[1])
    assert bench.task(ids[1]).crashes == 0


@pytest.mark.parametrize(
    ("conflicts", "state", "failures"), [(5, "SUCCEEDED", 0), (6, "FAILED", 1)]
)
@pytest.mark.parametrize("where", ["in the handler", "at its commit"])
def test_a_conflict_of_transactions_is_tried_again_uncharged_a_few_times(
    bench: Bench, where: str, conflicts: int, state: str, failures: int
) -> None:
    bench.sql("""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF new.note = 'conflict' THEN RAISE SQLSTATE '40001'; END IF; RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER refuses AFTER INSERT ON effect
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()
    """)
    bench.at_end(lambda: bench.sql("DROP TRIGGER refuses ON effect; DROP FUNCTION refuse"))

    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.attempt)
        if where == "in the handler":
            ctx.session.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
        note = "conflict" if len(bench.runs) <= conflicts else ""
        ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": note})

    task_id = bench.run_one()

    assert bench.state(task_id) == state
    assert bench.task(task_id).failures == failures
    assert bench.effects(task_id) == int(state == "SUCCEEDED")
    assert bench.runs == [1] * 6


@pytest.fixture
def bills(bench: Bench) -> Iterator[None]:
    bench.sql("CREATE TABLE bill (net int); INSERT INTO bill VALUES (1)")
    yield
    bench.sql("DROP TABLE bill")


@pytest.mark.usefixtures("bills")
@pytest.mark.parametrize("way", few(2, ["connection", "write", "async"]))
def test_a_table_altered_behind_a_prepared_statement_charges_none(bench: Bench, way: str) -> None:
    """It is run again once; a statement that fails so each time is charged."""
    query = "SELECT * FROM bill"

    def h(ctx: Any, payload: dict[str, int]) -> None:
        bench.runs.append(payload["n"])
        alters(payload["n"])
        ctx.write(query) if way == "write" else ctx.connection.execute(text(query))

    def alters(n: int) -> None:
        if n in {9, 12} and bench.runs.count(n) == 1:
            bench.sql("ALTER TABLE bill ALTER net TYPE bigint; ALTER TABLE bill ADD COLUMN m int")
            bench.sql("ALTER TABLE bill RENAME COLUMN m TO m" + str(n))

    bench.handler("t", max_attempts=1)(twin(h, is_async=way == "async"))
    ids = run_many(bench, 15, give_back_after=60, async_concurrency=1)

    assert set(bench.states(ids)) == {"SUCCEEDED"}
    assert all(bench.task(i).attempt == 1 for i in ids)
    assert {n for n in range(15) if bench.runs.count(n) == 2} <= {9, 12}


LOCKS = "UPDATE bill SET net = net + 1"


def limiting_locks(bench: Bench) -> str:
    """Return a URL whose sessions wait for locks that long, as those of a role may."""
    url = make_url(bench.url).update_query_dict({"options": "-c lock_timeout=40ms"})
    return url.render_as_string(hide_password=False)


@pytest.mark.usefixtures("bills")
@pytest.mark.parametrize("way", few(1, ["handler", "write", "async"]))
def test_a_lock_timeout_not_the_handlers_own_charges_nobody(bench: Bench, way: str) -> None:
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.attempt)
        if len(bench.runs) == 3:
            holder.rollback()
        if way == "write":
            threading.Timer(0.3, holder.rollback).start()
            ctx.write(LOCKS)
        else:
            ctx.connection.execute(text(LOCKS))

    bench.handler("t", max_attempts=1)(twin(h, is_async=way == "async"))
    task_id = bench.create()
    with bench.engine.connect() as holder:
        holder.execute(text(LOCKS))
        bench.drain(url=limiting_locks(bench))

    assert (bench.state(task_id), bench.task(task_id).failures) == ("SUCCEEDED", 0)
    assert bench.runs == ([1] if way == "write" else [1, 1, 1])


@pytest.mark.usefixtures("bills")
def test_a_limit_for_locks_that_is_the_handlers_own_is_charged(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict[str, list[str]]) -> None:
        bench.runs.append(ctx.task_id)
        ctx.connection.execute(text(payload["sql"][0]))
        ctx.connection.execute(text(payload["sql"][1]))

    local = "SET LOCAL lock_timeout = '30ms'"
    function = "SELECT set_config('lock_timeout', '30', true)"
    ids = [bench.create(payload={"sql": [local, LOCKS]})]
    ids += [bench.create(payload={"sql": ["SELECT 1", "SELECT FROM bill FOR UPDATE NOWAIT"]})]
    with bench.engine.connect() as holder:
        holder.execute(text(LOCKS))
        bench.drain(url=limiting_locks(bench))
        ids += [bench.create(payload={"sql": [function, LOCKS]})]
        bench.drain()

    assert bench.states(ids) == ["FAILED"] * 3
    assert bench.runs == ids


def test_an_adapter_that_a_run_registered_is_not_the_next_ones(bench: Bench) -> None:
    class Note:
        pass

    class NoteDumper(StrDumper):
        def dump(self, obj: Any) -> bytes:
            return b"noted"

    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict[str, int]) -> None:
        if payload["n"] == 0:
            driver(ctx).adapters.register_dumper(Note, NoteDumper)
        by_driver(ctx)
        assert driver(ctx).execute("SELECT %s", (Note(),)).fetchone() == ("noted",)

    ids = run_many(bench, 3)

    assert bench.states(ids) == ["SUCCEEDED", "FAILED", "FAILED"]


@pytest.mark.parametrize("choose", [choose_by_options, choose_by_session, choose_by_words])
def test_a_run_chooses_how_its_block_begins(bench: Bench, choose: Callable[[Any], Any]) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict[str, int]) -> str:
        through = choose(ctx) if payload["n"] % 2 else ctx.session
        effect(ctx)
        return str(through.execute(text("SHOW transaction_isolation")).scalar())

    ids = run_many(bench, 6)
    seen = [bench.task(i).result for i in ids]
    assert seen[::2] == ["read committed"] * 3
    assert "read committed" not in seen[1::2]
    assert [bench.effects(i) for i in ids] == [1] * 6


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_the_second_transaction_of_a_run_is_chosen_as_the_first(bench: Bench, end: str) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> str:
        ctx.connection.execute(text("SELECT 1"))
        ctx.commit() if end == "commit" else ctx.connection.rollback()
        ctx.connection.execution_options(isolation_level="SERIALIZABLE")
        return str(ctx.connection.execute(text("SHOW transaction_isolation")).scalar())

    task_id = bench.run_one()
    assert bench.task(task_id).result == "serializable"


def test_nothing_is_begun_before_the_first_statement(bench: Bench) -> None:
    """A run that takes its connection early would be idle in a transaction."""

    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> bool:
        return bool(driver(ctx).info.transaction_status == TransactionStatus.IDLE)

    task_id = bench.run_one()
    assert bench.task(task_id).result is True


def test_threads_that_ask_at_once_have_one_connection(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> int:
        barrier, found = threading.Barrier(2), list[Any]()

        def ask() -> None:
            barrier.wait(10)
            found.append(ctx.connection)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len({id(connection) for connection in found})

    ids = [bench.create() for _ in range(40)]

    bench.drain()

    assert {bench.task(i).result for i in ids} == {1}


def test_who_drops_what_is_prepared_may_run_once(bench: Bench) -> None:
    @bench.handler(at_most_once=True)
    def h(ctx: Any) -> None:
        effect(ctx)
        if ctx.biz_key:
            ctx.session.execute(text("DEALLOCATE ALL"))

    ids = [bench.create(), bench.create(biz_key="drops"), bench.create()]
    for task_id in ids:
        carry_out(bench, [task_id])
    assert bench.states(ids) == ["SUCCEEDED"] * 3


def test_the_first_settle_of_a_session_finds_its_tables_whatever_the_path(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        effect(ctx)
        ctx.session.execute(text("SET search_path TO nowhere"))

    task_id = bench.run_one()
    assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", 1)


def test_who_keeps_a_dead_connection_keeps_no_other(bench: Bench) -> None:
    kept: list[Any] = []

    @bench.handler()
    def h(ctx: Any) -> None:
        effect(ctx)
        kept.append(driver(ctx) if not kept else weakref.ref(driver(ctx)))

    child = warm(bench.child())
    child.execute([bench.create() for _ in range(6)])
    assert [of_run() for of_run in kept[1:]] == [None] * 5


def at_work(statement: str) -> Callable[[Any], None]:
    def start(ctx: Any) -> None:
        connection = driver(ctx)
        began = threading.Event()

        def go_on() -> None:
            while True:
                began.set()
                connection.execute(statement)

        threading.Thread(target=go_on, daemon=True).start()
        assert began.wait(5)

    return start


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("statement", ["SELECT 1", "SELECT pg_sleep(30)"])
@pytest.mark.parametrize("fails", [True, False])
def test_a_busy_thread_hurts_its_run_alone(bench: Bench, statement: str, *, fails: bool) -> None:
    start = at_work(statement)

    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict[str, int]) -> None:
        effect(ctx)
        if payload["n"] % 3 == 1:
            start(ctx)
            if fails:
                raise ValueError

    ids = run_many(bench, 12)

    for n, task_id in enumerate(ids):
        task = bench.task(task_id)
        assert (task.crashes, bench.effects(task_id)) == (0, int(task.state == "SUCCEEDED")), n
        assert n % 3 == 1 or task.state == "SUCCEEDED", (n, task.error)


def test_what_a_thread_uses_is_closed_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """libpq crashes where it is closed beneath a thread that no cancel reaches."""
    order: list[str] = []
    begins = threading.Event()

    class Slow(HandlerConnection):
        def wait(self, *arguments: Any, **options: Any) -> Any:
            begins.set()
            try:
                return super().wait(*arguments, **options)
            finally:
                order.append("out")

        def cancel_safe(self, **_: Any) -> None:
            pass

        def close(self) -> None:
            order.append("closed")
            super().close()

    def sleep() -> None:
        with suppress(OperationalError):
            connection.execute("SELECT pg_sleep(30)")

    monkeypatch.setattr(handler_connections, "BREAK_OFF_S", 0.1)
    connection = Slow.connect(bench.plain_url)
    connection.save_template()
    connection = connection.hand_over()
    thread = threading.Thread(target=sleep)
    thread.start()
    begins.wait()
    until(connection.lock.locked)

    connection.break_off()

    thread.join()
    assert order == ["out", "closed"]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_end_that_cannot_be_prepared_fails_one_run(bench: Bench, *, is_async: bool) -> None:
    """The names that the server had taken by then were sent again by each later run."""

    def h(ctx: Any, payload: dict[str, int]) -> None:
        effect(ctx)
        if payload["n"] == 0:
            ctx.session.execute(text("CREATE TEMP TABLE task_completed ()"))

    bench.handler(max_attempts=1)(twin(h, is_async=is_async))
    ids = run_many(bench, 4, async_connections=1, async_concurrency=1)
    assert bench.states(ids) == ["FAILED", *["SUCCEEDED"] * 3]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_commit_through_libpq_is_seen(bench: Bench, *, is_async: bool) -> None:
    def h(ctx: Any) -> None:
        effect(ctx)
        driver(ctx).pgconn.exec_(b"COMMIT")
        raise ValueError

    bench.handler(retry="0s,0s")(twin(h, is_async=is_async))
    task_id = bench.run_one()
    assert (bench.state(task_id), bench.effects(task_id)) == ("FAILED", 1)
    assert "ended the transaction" in bench.error(task_id)


def test_what_is_noted_at_a_connection_is_its_runs(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        effect(ctx)
        bench.runs.append((ctx.connection.info.get("mine"), driver(ctx).prepare_threshold))
        ctx.connection.info["mine"] = 1
        driver(ctx).prepare_threshold = 0

    carry_out(bench, [bench.create() for _ in range(3)])
    assert bench.runs == [(None, 5)] * 3


def test_a_connection_that_was_detached_fails_with_its_handlers_cause(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict[str, int]) -> None:
        if payload["n"] < 2:  # else it is detached before it begins
            effect(ctx)
        ctx.connection.detach()
        if payload["n"] == 2:
            ctx.connection.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})
        if payload["n"] == 1:
            raise ValueError

    ids = run_many(bench, 3)

    assert bench.states(ids) == ["FAILED"] * 3
    assert [bench.effects(i) for i in ids] == [0] * 3
    assert "Leave it open" in bench.error(ids[2])
    assert "closed ctx.connection" in bench.error(ids[0])
    assert bench.error(ids[1]).startswith("ValueError")
