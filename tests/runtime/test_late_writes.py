"""ctx.write: statements that travel with the outcome, in one commit and one round trip."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DataError

from tasks_app import NewTask, create_group, create_tasks
from tasks_app.runtime.execution import settler
from tasks_app.runtime.handler_db.ends import EndsRuns
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tasks_app.runtime.handler_db.statements import MOST_NAMES, PROVEN
from tasks_app.runtime.hooks import HOOKS, Notice, NoticeKind
from tests.clock import until
from tests.runtime.bench import EFFECT, Bench, carry_out, known_as_writes, run_many, warm
from tests.tiers import few

INSERT = "INSERT INTO effect (task_id, note) VALUES (%s, %s)"
KILL_ME = "SELECT pg_terminate_backend(pg_backend_pid())"
RETAKEN = "UPDATE task_pending SET lease_token = gen_random_uuid() WHERE id = :id"


@pytest.fixture(autouse=True)
def known() -> None:
    PROVEN.clear()
    known_as_writes(INSERT)


def declare(bench: Bench, way: str, function: Callable[[Any], object], **options: Any) -> None:
    """Let a handler do so: behind a statement if "used", in the event loop if "async"."""

    def h(ctx: Any) -> None:
        if way == "used":
            ctx.connection.execute(text("SELECT 1"))
        function(ctx)

    async def ah(ctx: Any) -> None:
        function(ctx)

    bench.handler("t", **{"max_attempts": 1, **options})(ah if way == "async" else h)


def writes_one(ctx: Any) -> None:
    ctx.write(INSERT, (ctx.task_id, ""))


def odd_ones(
    bench: Bench, way: str, odd: Callable[[Any], object], at: set[int], number: int
) -> list[int]:
    """Run so many in a row that write; those at some places do something odd behind it."""

    def h(ctx: Any) -> None:
        writes_one(ctx)
        if ctx.biz_key:
            odd(ctx)

    declare(bench, way, h)
    ids = [bench.create(biz_key="odd" if n in at else None) for n in range(number)]
    carry_out(bench, ids, give_back_after=60)
    return ids


@pytest.mark.test_all
@pytest.mark.parametrize("way", ["row", "threads", "async"])
def test_runs_that_write_wait_once(bench: Bench, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    declare(bench, way, writes_one)
    carry_out(bench, [bench.create()])
    waits: Counter[int] = Counter()
    known = HandlerConnection.wait

    def wait(self: Any, *arguments: Any, **options: Any) -> Any:
        waits[threading.get_ident()] += 1
        return known(self, *arguments, **options)

    monkeypatch.setattr(HandlerConnection, "wait", wait)
    run_many(bench, 120, give_back_after=60, extra_threads=2 if way == "threads" else 0)

    assert sum(waits.values()) <= 50  # 1 for 32 runs, and once what is prepared
    assert bench.sql("SELECT count(*) FROM effect") == 121


def test_writes_come_last_in_their_order(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        ctx.write("UPDATE effect SET note = note || %(more)s", {"more": "b"})
        ctx.write("UPDATE effect SET note = note || '%'")
        ctx.write("UPDATE effect SET note = note || %(more)s", {"more": "c"})
        ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": "a"})

    bench.run_one()
    assert bench.sql("SELECT note FROM effect") == "ab%c"


def test_what_a_commit_on_the_way_follows_is_written_with_it(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        ctx.write(INSERT, (ctx.task_id, "first"))
        ctx.commit()
        bench.runs.append(bench.effects(ctx.task_id))
        ctx.write(INSERT, (ctx.task_id, "second"))
        raise ValueError

    task_id = bench.run_one()
    assert (bench.runs, bench.effects(task_id), bench.state(task_id)) == ([1], 1, "FAILED")


@pytest.mark.parametrize("way", ["row", "used", "async"])
def test_a_function_that_changes_the_encoding_changes_no_value(bench: Bench, way: str) -> None:
    bench.sql(
        "CREATE FUNCTION in_latin() RETURNS void LANGUAGE sql AS"
        " $$ SELECT set_config('client_encoding', 'LATIN1', false) $$"
    )
    bench.at_end(lambda: bench.sql("DROP FUNCTION in_latin"))
    known_as_writes("SELECT in_latin()")

    def h(ctx: Any) -> None:
        if ctx.biz_key:
            ctx.write("SELECT in_latin()")
        ctx.write(INSERT, (ctx.task_id, "Müller"))

    declare(bench, way, h)
    ids = [bench.create(biz_key="odd" if n == 1 else None) for n in range(3)]

    carry_out(bench, ids, give_back_after=60)

    assert bench.states(ids) == ["SUCCEEDED", "FAILED", "SUCCEEDED"]
    assert "has changed client_encoding to LATIN1" in bench.error(ids[1])
    assert bench.sql("SELECT array_agg(note) FROM effect") == ["Müller"] * 2


class TestOneThatFails:
    """It lets its own run fail; those before and behind it on the same connection stand."""

    @pytest.mark.parametrize("way", ["row", "used", "async"])
    def test_one_that_drops_what_is_prepared_does(self, bench: Bench, way: str) -> None:
        """The first time its text comes alone, and those that it harms are run again."""
        drop = "DO $$BEGIN EXECUTE 'DEALLOCATE ALL'; END$$"
        ids = odd_ones(bench, way, lambda ctx: ctx.write(drop), {2, 5}, 9)
        assert bench.states(ids) == ["SUCCEEDED"] * 5 + ["FAILED"] + ["SUCCEEDED"] * 3
        assert [bench.effects(i) for i in ids] == [1, 1, 1, 1, 1, 0, 1, 1, 1]
        assert "does not exist" in bench.error(ids[5])

    @pytest.mark.parametrize("way", ["row", "async"])
    def test_an_outage_that_it_meets_is_uncharged(self, bench: Bench, way: str) -> None:
        """It is judged in the thread of the message, whatever its handler is."""
        declare(bench, way, lambda ctx: ctx.write("SELECT 1 / 0"), on_error={DataError: "outage"})
        task_id = bench.create()
        carry_out(bench, [task_id], give_back_after=60)
        assert (bench.state(task_id), bench.task(task_id).failures) == ("PENDING", 0)
        assert bench.sql("SELECT outages FROM task_pending") == 1


def test_one_that_was_not_prepared_is_prepared_by_the_next(bench: Bench) -> None:
    query = "INSERT INTO effect (task_id, note) SELECT id, '' FROM later WHERE id = %s"
    known_as_writes(query)

    bench.handler(max_attempts=1)(lambda ctx: ctx.write(query, (1,)))
    ids = [bench.create(), bench.create()]
    child = warm(bench.child(give_back_after=60))
    child.execute(ids[:1])
    bench.sql("CREATE TABLE later AS SELECT 1::bigint AS id")
    try:
        child.execute(ids[1:])
        until(lambda: child.inflight.empty)
        child.stop()
    finally:
        bench.sql("DROP TABLE later")

    assert bench.states(ids) == ["FAILED", "SUCCEEDED"]


@pytest.mark.parametrize("way", few(1, ["each", "async"]))
@pytest.mark.parametrize(
    ("places", "parameters", "told"),
    [
        ("%s", 7, "of type int"),
        ("%s", "7", "of type str"),
        ("%s", {7}, "of type set"),
        ("%s", (n for n in [7]), "of type generator"),
        ("%s", (), "0 parameters for 1 %s"),
        ("%s", [7, 8], "2 parameters for 1 %s"),
        ("%s", {"id": 7}, "takes a dict for %(name)s"),
        ("%(id)s", (7,), "takes a dict for %(name)s"),
        ("%(id)s + %(b)s + %(a)s", {"id": 7}, "lack a, b"),
        (":id", {"id": 7}, "1 parameters for 0 %s"),
        (":id", (7,), "1 parameters for 0 %s"),
        ("%d", (7,), "has '%d' in it"),
        ("%(id)d", {"id": 7}, "has '%(' in it"),
    ],
)
def test_parameters_that_do_not_fit_are_refused_in_the_line_that_asks(
    bench: Bench, way: str, places: str, parameters: Any, told: str
) -> None:
    query = f"INSERT INTO effect (task_id, note) VALUES ({places}, '100 %%')"

    def h(ctx: Any) -> None:
        try:
            ctx.write(query, parameters)
        except (TypeError, ValueError) as error:
            bench.runs.append(str(error))

    declare(bench, way, h)
    bench.run_one()
    (error,) = bench.runs
    assert told in error


def test_a_thread_left_behind_writes_or_is_refused(bench: Bench) -> None:
    """The instant between: it is held within its call while the handler returns."""
    held, returned = threading.Event(), threading.Event()
    heard: list[str] = []

    class Slow(list[int]):
        def __len__(self) -> int:
            held.set()
            returned.wait(10)
            return super().__len__()

    def late(ctx: Any) -> None:
        try:
            ctx.write("INSERT INTO effect (task_id, note) VALUES (%s, '')", Slow([ctx.task_id]))
            heard.append("written")
        except RuntimeError as error:
            heard.append(str(error))

    @bench.handler()
    def h(ctx: Any) -> None:
        thread = threading.Thread(target=late, args=(ctx,))
        thread.start()
        bench.runs.append(thread)
        assert held.wait(10)
        threading.Timer(0.05, returned.set).start()

    task_id = bench.run_one()

    bench.runs[0].join(10)
    assert bench.effects(task_id) == heard.count("written") == 1


def test_a_thread_that_comes_later_is_refused(bench: Bench) -> None:
    contexts: list[Any] = []
    bench.handler("t")(contexts.append)
    bench.run_one()
    with pytest.raises(RuntimeError, match="The run is over"):
        contexts[0].write("SELECT 1")


@pytest.mark.parametrize(
    "left",
    [
        "SELECT set_config('search_path', 'nowhere', false)",
        "CREATE TEMPORARY TABLE effect (task_id bigint, note text)",
        "SELECT pg_advisory_lock(4711)",
    ],
)
def test_nothing_of_a_run_stays_for_the_next(bench: Bench, left: str) -> None:
    known_as_writes(left)
    ids = odd_ones(bench, "row", lambda ctx: ctx.write(left), {2}, 6)
    assert set(bench.states(ids)) == {"SUCCEEDED"}
    assert [bench.effects(i) for i in ids] == [1] * 6
    assert (
        bench.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711") == 0
    )


REFUSED = {
    "SET ROLE pg_monitor": "SET",
    "SET client_encoding = 'LATIN1'": "SET",
    "SET LOCAL IntervalStyle = sql_standard": "SET",
    "SET CONSTRAINTS ALL DEFERRED": "SET CONSTRAINTS",
    "SET TRANSACTION READ WRITE": "SET",
    "RESET ALL": "RESET",
    "SHOW ALL": "SHOW",
    "LISTEN somebody": "LISTEN",
    "UNLISTEN *": "UNLISTEN",
    "DISCARD PLANS": "DISCARD PLANS",
    "DEALLOCATE ALL": "DEALLOCATE ALL",
    "PREPARE theirs AS SELECT 1": "PREPARE",
    "DECLARE theirs CURSOR WITH HOLD FOR SELECT 1": "DECLARE CURSOR",
    "SAVEPOINT theirs": "SAVEPOINT",
    "EXPLAIN SELECT 1": "EXPLAIN",
    "-- nothing": "empty",
}
FAILING = [
    ("INSERT INTO effect (task_id, note) VALUES (1 / (%s - %s), '')", (7, 7), "division by zero"),
    ("INSERT INTO no_such_table VALUES (%s)", (1,), "no_such_table"),
    ("INSERT INTO effect (task_id) VALUES (%s)", ({},), "cannot adapt"),
    ("this is no SQL", None, "syntax error"),
    *((query, None, f"the server calls this one {tag}.") for query, tag in REFUSED.items()),
    ("SELECT 1; SELECT 2", None, "takes one statement, and this text has several."),
    ("INSERT INTO effect VALUES (1, ''); SET ROLE pg_monitor", None, "this text has several."),
]


@pytest.mark.parametrize("way", few(1, ["row", "used", "group", "async", "pooled"]))
def test_what_fails_or_is_not_one_statement_that_writes_fails_alone(bench: Bench, way: str) -> None:
    """By its command tag; and no later run meets what it did."""
    run_each(bench, way, [[(query, parameters)] for query, parameters, _ in FAILING])
    for (query, _, told), task_id in zip(FAILING, bench.runs[1:], strict=True):
        task = bench.task(task_id)
        assert (task.state, task.crashes, bench.effects(task_id)) == ("FAILED", 0, 0), query
        assert told in (task.error or ""), query
    innocents_succeeded(bench)


ENDS = [
    f"{before}{end}"
    for end in ("ROLLBACK", "COMMIT", "ROLLBACK AND CHAIN", "COMMIT AND CHAIN", "ABORT", "END")
    for before in ("; /* /* */ */ ", f"/*{'x' * 10_001}*/", " " * 10_001)
]


@pytest.mark.parametrize("way", few(1, ["row", "used", "group", "async", "pooled"]))
def test_an_end_of_the_transaction_that_its_text_hides_is_found_out(bench: Bench, way: str) -> None:
    """Each is tried twice: nor does it become known as a write. What stands is told, once."""
    behind = "INSERT INTO effect (task_id, note) VALUES (%s, 'behind')"
    writes = [[(end, None), (behind, (0,)), ("SELECT 1 / 0", None)] for end in [*ENDS, *ENDS]]
    run_each(bench, way, writes)
    for end, task_id in zip([*ENDS, *ENDS], bench.runs[1:], strict=True):
        task = bench.task(task_id)
        assert (task.state, task.attempt) == ("FAILED", 1), end[-20:]
        assert "ended the transaction of ctx.session by itself" in (task.error or ""), end[-20:]
    assert bench.sql("SELECT count(*) FROM effect WHERE note = 'behind'") == 0
    innocents_succeeded(bench)


def run_each(bench: Bench, way: str, writes: list[list[tuple[str, Any]]]) -> None:
    """Run one task for each, and an innocent one behind it; ``bench.runs`` names them."""

    def h(ctx: Any, payload: dict[str, int]) -> None:
        if way == "used":
            ctx.connection.execute(text("SELECT 1"))
        writes_one(ctx)
        for write in writes[payload["n"]] if payload["n"] >= 0 else ():
            ctx.write(*write)

    async def ah(ctx: Any, payload: dict[str, int]) -> None:
        h(ctx, payload)

    bench.handler("t", retry="0s,0s")(ah if way == "async" else h)
    tasks = [NewTask("t", {"n": n}) for n in range(-1, len(writes))]
    tasks = [one for task in tasks for one in (task, NewTask("t", {"n": -1}))]
    with bench.engine.begin() as connection:
        if way == "group":
            create_group(connection, tasks)
        else:
            create_tasks(connection, tasks)
    ids = bench.sql("SELECT array_agg(id ORDER BY id) FROM task_pending WHERE name = 't'")
    bench.runs += ids[::2]
    carry_out(bench, ids, give_back_after=60, prepare=way != "pooled")
    if bench.sql("SELECT count(*) FROM task_pending WHERE name = 't'"):
        bench.drain()  # what is tried again


def innocents_succeeded(bench: Bench) -> None:
    condition = "(payload->>'n')::int < 0"
    states = f"SELECT array_agg(DISTINCT state) FROM task_all WHERE {condition}"
    assert bench.sql(states) == ["SUCCEEDED"]
    effects = "SELECT count(*) FROM effect e JOIN task_completed t ON t.id = e.task_id"
    assert bench.sql(effects) == bench.sql(f"SELECT count(*) FROM task_all WHERE {condition}")


@pytest.mark.parametrize("way", few(1, ["plain", "async"]))
def test_a_swallowed_refusal_of_a_commit_loses_nothing_silently(bench: Bench, way: str) -> None:
    def plain(ctx: Any) -> None:
        ctx.write("SET ROLE pg_monitor")
        ctx.write(INSERT, (ctx.task_id, ""))
        with suppress(RuntimeError):
            ctx.commit()

    async def asynchronous(ctx: Any) -> None:
        ctx.write("SET ROLE pg_monitor")
        ctx.write(INSERT, (ctx.task_id, ""))
        with suppress(RuntimeError):
            await ctx.commit()

    bench.handler("t", max_attempts=1)(plain if way == "plain" else asynchronous)
    task_id = bench.run_one()

    assert (bench.state(task_id), bench.effects(task_id)) == ("FAILED", 0)


def test_what_a_function_sets_is_heeded_by_the_writes_behind_it(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        ctx.write("SELECT set_config('client_encoding', 'LATIN1', false)")
        ctx.write("SELECT set_config('IntervalStyle', 'sql_standard', false)")
        ctx.write(
            "INSERT INTO effect VALUES (%s, extract(epoch FROM %s::interval)::int || %s)",
            (ctx.task_id, timedelta(days=-1, hours=1), "\xe9"),
        )

    run_many(bench, 4, give_back_after=60)
    notes = bench.sql("SELECT array_agg(DISTINCT note) FROM effect")
    assert notes == [f"{-23 * 3600}\xe9"]


@pytest.mark.test_all
@pytest.mark.parametrize("used", [False, True])
def test_in_a_process_that_the_handler_forked_nothing_is_accepted(bench: Bench, used: bool) -> None:
    asked: dict[str, Callable[[Any], object]] = {
        "write": lambda ctx: ctx.write(INSERT, (ctx.task_id, "")),
        "connection": lambda ctx: ctx.connection.execute(text("SELECT 1")),
        "session": lambda ctx: ctx.session.execute(text("SELECT 1")),
        "commit": lambda ctx: ctx.commit({"at": 1}),
        "sub-status": lambda ctx: ctx.set_sub_status("in a fork"),
        "spend": lambda ctx: ctx.spend(1),
    }

    @bench.handler()
    def h(ctx: Any) -> None:
        if used:
            ctx.connection.execute(text("SELECT 1"))
        for name, ask in asked.items():
            bench.runs.append((name, said_in_a_fork(lambda ask=ask: ask(ctx))))
        ctx.write(INSERT, (ctx.task_id, ""))

    task_id = bench.run_one()

    assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", 1)
    for name, said in bench.runs:
        assert "was forked from the handler's" in said, name


def said_in_a_fork(ask: Callable[[], object]) -> str:
    reads, writes = os.pipe()
    if not (pid := os.fork()):
        try:
            ask()
            said = "accepted"
        except BaseException as error:
            said = str(error)
        os.write(writes, said.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        return pipe.read()


@pytest.mark.usefixtures("cold_connections")
def test_what_only_writes_has_one_connection_for_all(bench: Bench) -> None:
    backends: set[int] = set()

    @bench.handler()
    def h(ctx: Any) -> None:
        if ctx.biz_key:
            backends.add(ctx.connection.execute(text("SELECT pg_backend_pid()")).scalar_one())
        ctx.write(
            "INSERT INTO effect (task_id, note) VALUES (%s, pg_backend_pid()::text)", [ctx.task_id]
        )

    ids = [bench.create(biz_key="uses" if n % 2 else None) for n in range(10)]

    carry_out(bench, ids, give_back_after=60)

    assert set(bench.states(ids)) == {"SUCCEEDED"}
    assert bench.sql("SELECT count(DISTINCT note) FROM effect") == 1 + len(backends) == 2


def test_more_statements_than_are_prepared(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        for n in range(MOST_NAMES + 20):
            ctx.write(f"INSERT INTO effect (task_id, note) VALUES (%s, '{n}')", (ctx.task_id,))

    ids = [bench.create(), bench.create()]
    bench.drain()
    assert [bench.effects(i) for i in ids] == [MOST_NAMES + 20] * 2


@pytest.mark.test_all
def test_a_backend_that_dies_of_a_write_charges_nobody(bench: Bench) -> None:
    known_as_writes(KILL_ME)

    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        ctx.write(INSERT, (ctx.task_id, ""))
        if ctx.attempt == 1 and ctx.biz_key:
            ctx.write(KILL_ME)

    ids = [bench.create(), bench.create(biz_key="dies"), bench.create()]
    child = warm(bench.child(give_back_after=60))
    threading.Thread(target=child.execute, args=(ids,)).start()
    until(lambda: child.inflight.empty and not child.in_hand, 20)
    child.stop()
    bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")

    bench.drain()

    assert set(bench.states(ids)) == {"SUCCEEDED"}
    assert [bench.effects(i) for i in ids] == [1, 1, 1]
    assert bench.task(ids[1]).failures == 0


class Held:
    """A row of ``effect`` that another transaction holds, as long as this lasts."""

    def __init__(self, bench: Bench) -> None:
        bench.sql("INSERT INTO effect (task_id, note) VALUES (0, 'held')")
        self._connection = bench.engine.connect()
        self._connection.execute(text("UPDATE effect SET note = 'theirs' WHERE task_id = 0"))

    def let_go(self) -> None:
        self._connection.rollback()
        self._connection.close()


class TestOneThatIsHostile:
    """Others end well, and it ends."""

    def test_one_that_names_no_prepared_statement_spoils_no_session(self, bench: Bench) -> None:
        @bench.handler(max_attempts=1)
        def h(ctx: Any) -> None:
            if ctx.biz_key:
                ctx.write("EXECUTE no_such_statement")
            else:
                ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})

        ids = [bench.create(biz_key="bad" if n == 0 else None) for n in range(10)]
        carry_out(bench, ids, give_back_after=60)
        assert bench.states(ids) == ["FAILED"] + ["SUCCEEDED"] * 9

    @pytest.mark.parametrize("kind", [dict, list])
    def test_what_a_handler_changes_later_is_not_written(self, bench: Bench, kind: Any) -> None:
        shared: Any = {"id": 0} if kind is dict else [0]
        place = "%(id)s" if kind is dict else "%s"

        @bench.handler()
        def h(ctx: Any) -> None:
            shared["id" if kind is dict else 0] = ctx.task_id
            ctx.write(f"INSERT INTO effect (task_id, note) VALUES ({place}, '')", shared)

        ids = run_many(bench, 5, give_back_after=60)
        assert [bench.effects(i) for i in ids] == [1] * 5

    @pytest.mark.parametrize(
        "query",
        [
            f"/*{'x' * 20_000}*/ COPY effect FROM STDIN",
            f"/*{'x' * 20_000}*/ COPY effect TO STDOUT",
            "DO $$ BEGIN RAISE 'away' USING ERRCODE = '08001'; END $$",
        ],
        ids=["from", "to", "away"],
    )
    def test_one_that_streams_or_says_nobody_answers(self, bench: Bench, query: str) -> None:
        @bench.handler(max_attempts=1)
        def h(ctx: Any) -> None:
            ctx.write(INSERT, (ctx.task_id, ""))
            if ctx.biz_key:
                ctx.write(query)

        ids = [bench.create(biz_key="bad" if n == 2 else None) for n in range(5)]
        child = warm(bench.child(give_back_after=60))
        threading.Thread(target=child.execute, args=(ids,)).start()
        until(lambda: child.inflight.empty and not child.in_hand, 20)
        child.stop()

        good = [*ids[:2], *ids[3:]]
        assert bench.states(good) == ["SUCCEEDED"] * 4
        assert [bench.effects(i) for i in good] == [1] * 4
        bad = bench.task(ids[2])
        succeeded = bad.state == "SUCCEEDED"  # the server had gone on behind a COPY to us
        assert bench.effects(bad.id) == succeeded
        assert (bad.failures or bad.crashes) == (not succeeded)

    def test_a_commit_in_deep_comments_is_refused(self, bench: Bench) -> None:
        declare(bench, "row", lambda ctx: (writes_one(ctx), ctx.write(ctx.biz_key)))
        ids = [
            bench.create(biz_key=key) for key in ["/* /* */ */ COMMIT", f"/*{'x' * 150}*/ COMMIT"]
        ]
        carry_out(bench, ids, give_back_after=60)
        assert bench.states(ids) == ["FAILED", "FAILED"]
        assert [bench.effects(i) for i in ids] == [0, 0]

    @pytest.mark.parametrize("prepares", [True, False])
    @pytest.mark.parametrize("known", [True, False])
    def test_the_failed_statement_is_named(self, bench: Bench, prepares: bool, known: bool) -> None:
        if known:
            known_as_writes("SELECT 1/0 AS guilty", "SELECT 'innocent'")
            known_as_writes(*(f"SELECT {n}" for n in range(MOST_NAMES)))

        @bench.handler(max_attempts=1)
        def h(ctx: Any) -> None:
            for n in range(MOST_NAMES):
                ctx.write(f"SELECT {n}")
            ctx.write("SELECT 1/0 AS guilty")
            ctx.write("SELECT 'innocent'")

        task_id = bench.create()

        carry_out(bench, [task_id], give_back_after=60, prepare=prepares)

        assert "SQL: SELECT 1/0 AS guilty" in bench.error(task_id)

    def test_an_end_that_fails_first_in_its_session_leaves_it_as_it_was(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nothing is prepared yet, and the next end prepares it."""
        caplog.set_level("INFO")
        PROVEN.clear()

        @bench.handler()
        def h(ctx: Any) -> None:
            ctx.connection.execute(text("SELECT 1"))
            ctx.write(INSERT, (ctx.task_id, ""))
            if ctx.biz_key:
                bench.sql(RETAKEN, id=ctx.task_id)

        ids = [bench.create(biz_key="lost"), bench.create()]

        carry_out(bench, ids, give_back_after=60)

        assert bench.states(ids) == ["RUNNING", "SUCCEEDED"]
        assert [bench.effects(i) for i in ids] == [0, 1]
        assert "run again" not in caplog.text


class TestOneThatWaits:
    """It is sent again alone, so that those behind it do not wait, too."""

    @pytest.mark.parametrize("way", ["row", "async"])
    def test_others_do_not_wait_for_it(self, bench: Bench, way: str) -> None:
        waits = "UPDATE effect SET note = note || 'x' WHERE task_id = 0"
        known_as_writes(waits)

        def write(ctx: Any) -> None:
            writes_one(ctx)
            if ctx.biz_key:
                bench.runs.append(ctx.attempt)
                ctx.write(waits)

        declare(bench, way, write)
        held = Held(bench)
        ids = [bench.create(biz_key="waits" if n == 3 else None) for n in range(7)]
        child = warm(bench.child(give_back_after=60))
        thread = threading.Thread(target=child.execute, args=(ids,))
        thread.start()
        others = [*ids[:3], *ids[4:]]
        try:
            until(lambda: set(bench.states(others)) == {"SUCCEEDED"})
            until(lambda: bench.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") == 1)
            assert bench.states(ids)[3] == "RUNNING"
        finally:
            held.let_go()
            thread.join()
        child.stop()

        assert bench.state(ids[3]) == "SUCCEEDED"
        assert bench.runs == [1]
        assert bench.sql("SELECT note FROM effect WHERE task_id = 0") == "heldx"

    @pytest.mark.parametrize("way", few(1, ["slow", "alone"]))
    def test_it_is_committed_before_anything_slow_begins(self, bench: Bench, way: str) -> None:
        @bench.handler(max_attempts=1)
        def h(ctx: Any) -> None:
            ctx.write("UPDATE effect SET note = note || 'x' WHERE task_id = 0")

        @bench.handler("slow", at_most_once=way == "alone")
        def slow(_ctx: Any) -> None:
            bench.runs.append(bench.state(waits))

        held = Held(bench)
        waits, other = bench.create(), bench.create("slow")
        child = warm(bench.child(give_back_after=60, flush_after=60))
        for task_id in (waits, other):
            child.executor.fetcher.claim([task_id])
        thread = bench.beside(child.executor.run_waiting)
        try:
            until(lambda: bench.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") == 1)
            until(lambda: any(run.returned for run in child.inflight.running()) or bench.runs)
        finally:
            held.let_go()
            thread.join()
        child.stop()

        assert bench.runs == ["SUCCEEDED"]
        assert bench.states([waits, other]) == ["SUCCEEDED"] * 2
        assert bench.sql("SELECT note FROM effect WHERE task_id = 0") == "heldx"

    @pytest.mark.test_all
    def test_many_that_wait_hold_up_no_renewals(self, bench: Bench) -> None:
        """One flush tries some of them; the rest stay in flight until the next."""
        declare(bench, "row", writes_one)
        ids = [bench.create() for _ in range(40)]
        child = warm(bench.child(give_back_after=60, flush_after=60))
        with bench.engine.begin() as connection:
            connection.execute(text("LOCK TABLE effect"))
            thread = threading.Thread(target=child.execute, args=(ids,))
            thread.start()
            until(
                lambda: (
                    any(run.returned for run in child.inflight.running())
                    and child.inflight.finished()
                )
            )
        thread.join()
        child.stop()

        assert set(bench.states(ids)) == {"SUCCEEDED"}
        assert [bench.effects(i) for i in ids] == [1] * 40

    @pytest.mark.test_all
    def test_a_message_ends_when_all_that_is_slow_is_written(self, bench: Bench) -> None:
        """However often the time of one flush is over, and whatever is refused behind that."""

        @bench.handler(max_attempts=1)
        def h(ctx: Any) -> None:
            ctx.write("SELECT pg_sleep(0.04)")
            ctx.write("SELECT 1 / %s", (int(ctx.biz_key is None),))

        ids = [bench.create(biz_key="bad" if n > 127 else None) for n in range(130)]
        child = warm(bench.child(give_back_after=60, flush_after=60))
        child.execute(ids)

        assert child.inflight.empty
        assert bench.states(ids) == ["SUCCEEDED"] * 128 + ["FAILED"] * 2
        child.stop()

    def test_what_was_called_is_not_given_back_while_others_wait(self, bench: Bench) -> None:
        declare(bench, "row", writes_one)
        ids = [bench.create() for _ in range(5)]
        child = warm(bench.child(give_back_after=0.2))
        with bench.engine.begin() as connection:
            connection.execute(text("LOCK TABLE effect"))
            thread = threading.Thread(target=child.execute, args=(ids,))
            thread.start()
            until(lambda: any(run.returned for run in child.inflight.running()))
            child.inflight.take_back(0.0)
            assert child.inflight.returning() == []
        thread.join()
        child.stop()

        assert set(bench.states(ids)) == {"SUCCEEDED"}
        assert all(bench.task(i).attempt == 1 for i in ids)

    def test_hooks_hear_of_one_start(self, bench: Bench) -> None:
        told: list[NoticeKind] = []
        bench.handler(max_attempts=1)(lambda ctx: ctx.write("SELECT pg_sleep(0.2)"))

        def hear(notice: Notice) -> None:
            told.append(notice.kind)

        HOOKS.subscribe(hear)
        try:
            carry_out(bench, [bench.create()], give_back_after=60)
        finally:
            HOOKS.unsubscribe(hear)
        assert told == [NoticeKind.RECEIVED, NoticeKind.STARTED, NoticeKind.SUCCEEDED]

    @pytest.mark.test_all
    def test_what_is_slow_is_not_cut_off_alone(self, bench: Bench) -> None:
        @bench.handler(max_attempts=1)
        def h(ctx: Any) -> None:
            bench.runs.append(ctx.attempt)
            ctx.write(INSERT, (ctx.task_id, ""))
            ctx.write("SELECT pg_sleep(0.3)")

        ids = run_many(bench, 3, give_back_after=60)
        assert bench.states(ids) == ["SUCCEEDED"] * 3
        assert [bench.effects(i) for i in ids] == [1, 1, 1]
        assert bench.runs == [1, 1, 1]

    def test_a_child_that_stops_gives_it_back(self, bench: Bench) -> None:
        """Its task runs again elsewhere, uncharged."""
        ids: list[int] = []

        @bench.handler(max_attempts=1)
        def h(ctx: Any) -> None:
            bench.runs.append(ctx.attempt)
            ctx.write("UPDATE effect SET note = note || 'x' WHERE task_id = 0")
            child.inflight.stop()

        held = Held(bench)
        ids.append(bench.create())
        child = warm(bench.child(give_back_after=60))
        child.execute(ids)
        child.stop()
        held.let_go()

        assert (bench.state(ids[0]), bench.task(ids[0]).failures) == ("PENDING", 0)
        assert bench.sql("SELECT note FROM effect WHERE task_id = 0") == "held"


@pytest.fixture
def flushing(bench: Bench) -> Iterator[None]:
    """While the fixture lasts, each settle notes whether its COMMIT will flush the log."""
    bench.sql(
        "CREATE FUNCTION notes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO effect VALUES (OLD.id, current_setting('synchronous_commit'));"
        " RETURN NULL; END $$;"
        " CREATE TRIGGER notes AFTER DELETE ON task_pending FOR EACH ROW EXECUTE FUNCTION notes()"
    )
    yield
    bench.sql("DROP FUNCTION notes() CASCADE")


def flushes_and_counts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note what is flushed and what is counted, in order: ``flushed``, ``2 counted``."""
    calls: list[str] = []
    known = EndsRuns._check_flushed, settler.count_settled

    def check(pipeline: Any, answer: Any) -> Any:
        yield from known[0](pipeline, answer)
        calls.append("flushed")

    def count(settlements: Any, states: Any) -> None:
        if any(settlement.writes for settlement in settlements):
            calls.append(f"{len(states)} counted")
        known[1](settlements, states)

    monkeypatch.setattr(EndsRuns, "_check_flushed", check)
    monkeypatch.setattr(settler, "count_settled", count)
    return calls


@pytest.mark.usefixtures("flushing")
class TestTheLog:
    """It is flushed before anybody hears that a run has succeeded."""

    @pytest.mark.parametrize("bad", [None, 2, 4])
    def test_one_flush_is_behind_all(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, bad: int | None
    ) -> None:
        """Whichever of them fails."""

        @bench.handler(max_attempts=1)
        def h(ctx: Any) -> None:
            ctx.write("SELECT 1 / %s", (int(ctx.biz_key != "bad"),))

        known_as_writes("SELECT 1 / %s")
        calls = flushes_and_counts(monkeypatch)
        ids = [bench.create(biz_key="bad" if n == bad else None) for n in range(5)]

        carry_out(bench, ids, give_back_after=60, flush_after=60)

        groups = {None: [5], 2: [2, 2], 4: [4]}[bad]
        assert calls == [said for n in groups for said in ("flushed", f"{n} counted")]
        assert bench.sql("SELECT count(*) FROM effect WHERE note = 'off'") == sum(groups)

    def test_who_is_told_is_on_disk(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """As far as the log went when each wrote, and its COMMIT is behind that."""
        bench.sql("DROP TRIGGER notes ON task_pending")
        writes = "INSERT INTO effect SELECT %s, pg_current_wal_insert_lsn()::text"
        known_as_writes(writes)
        bench.handler()(lambda ctx: ctx.write(writes, (ctx.task_id,)))
        ids = [bench.create() for _ in range(5)]
        known, told = settler.count_settled, list[bool]()

        def count(settlements: Any, states: Any) -> None:
            is_on_disk = "SELECT pg_current_wal_flush_lsn() > max(note::pg_lsn) FROM effect"
            told.append(bench.sql(is_on_disk))
            known(settlements, states)

        monkeypatch.setattr(settler, "count_settled", count)

        carry_out(bench, ids, give_back_after=60, flush_after=60)

        assert told == [True]


def test_locks_are_held_until_it_is_committed(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        ctx.locks(exclusive="pay").take()
        ctx.write("INSERT INTO effect SELECT %s, count(*) FROM task_lock_holder", (ctx.task_id,))

    ids = run_many(bench, 3, give_back_after=60)
    assert set(bench.states(ids)) == {"SUCCEEDED"}
    assert bench.sql("SELECT string_agg(note, '') FROM effect") == "111"


def test_a_lease_that_is_lost_in_between_loses_only_its_own(bench: Bench) -> None:
    declare(bench, "row", writes_one)
    ids = [bench.create() for _ in range(5)]
    child = warm(bench.child(give_back_after=60))
    known = child.executor.settler.flush

    def flush() -> bool:
        bench.sql(RETAKEN, id=ids[2])
        return known()

    child.executor.settler.flush = flush  # type: ignore[method-assign]
    child.execute(ids)
    until(lambda: child.inflight.empty)
    child.stop()

    assert [bench.effects(i) for i in ids] == [1, 1, 0, 1, 1]
    assert bench.states(ids) == ["SUCCEEDED"] * 2 + ["RUNNING"] + ["SUCCEEDED"] * 2


def test_without_a_database_it_waits_with_what_it_has(bench: Bench) -> None:
    """Neither is the handler called again, nor is anything written twice."""
    with bench.proxy() as (proxy, url):

        @bench.handler(max_attempts=1)
        def h(ctx: Any) -> None:
            bench.runs.append(ctx.attempt)
            ctx.write(INSERT, (ctx.task_id, ""))
            if len(bench.runs) == 3:
                proxy.cut()

        ids = [bench.create() for _ in range(5)]
        child = warm(bench.child(url=url))
        child.execute(ids)
        until(lambda: child.inflight.empty)
        child.stop()

    assert bench.states(ids) == ["SUCCEEDED"] * 5
    assert [bench.effects(i) for i in ids] == [1] * 5
    assert bench.runs == [1] * 5
