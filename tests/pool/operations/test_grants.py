"""Rights of roles, the trigger of NOTIFY, values that users give."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import ProgrammingError

from tasks_app import (
    NewTask,
    cancel_task,
    create_group,
    create_schedule,
    create_task,
    create_tasks,
    explain_task,
    get_group,
    requeue_task,
)
from tasks_app.domain.events import event
from tasks_app.domain.flows import Flow
from tasks_app.domain.large_values.store import RESULT, LargePayload
from tasks_app.domain.locks import GrantedLocks, LockRequest, lock_parts
from tasks_app.domain.partition.keys import KeyType, ranges_between
from tasks_app.domain.partition.records import Partition, PartitionKind, Plan, Status
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event, Pool
from tasks_app.pool import scheduling
from tasks_app.pool.batch import partition_progress
from tasks_app.pool.batch import partitions as store
from tasks_app.pool.batch.sources import marks
from tasks_app.pool.dispatch import leader_lease, notifications, scan
from tasks_app.pool.dispatch.notifications import listen, received_queues
from tasks_app.pool.flow_control import queue_settings
from tasks_app.pool.locks.acquire import acquire, insert_resources
from tasks_app.pool.locks.holders import guard, release, renew
from tasks_app.pool.operations import audit
from tasks_app.pool.operations.encrypted_values import PLACES
from tasks_app.pool.operations.erase import USER_VALUES
from tasks_app.pool.operations.grants import RoleKind, grants_sql
from tasks_app.pool.runs import heartbeats, leases, settle
from tasks_app.pool.schema import check_schema
from tasks_app.pool.tasks import browse, transfer, unique_keys
from tasks_app.pool.tasks.amend import change_payload
from tasks_app.pool.tasks.create import create_one
from tasks_app.pool.tasks.large_values import write_value
from tasks_app.runtime.api.events import send_event
from tasks_app.runtime.api.flows import create_flow, extend_flow
from tasks_app.runtime.api.groups import extend_group
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.notify import dedicated_connection
from tests.clock import until
from tests.factory import a_row, claimed_task, ending, pending_task
from tests.servers import named

PASSWORD = "of-this-test"
LARGE = LargePayload.of("{}", encrypted=False)
VIEW = "SELECT name FROM task_schedules"
STANDS = "SELECT state, attempt, due_at, parked FROM task_pending WHERE id = :id"
NAME = named('role "{}" of this test')
"""One that has to be quoted."""


@pytest.fixture(scope="module")
def roles(shared_engine: Engine, database_url: str) -> Iterator[dict[RoleKind, Engine]]:
    engines = {}
    with shared_engine.begin() as connection:
        for kind in RoleKind:
            name = NAME.format(kind)
            quoted = connection.dialect.identifier_preparer.quote(name)
            connection.exec_driver_sql(f"CREATE ROLE {quoted} LOGIN PASSWORD '{PASSWORD}'")
            connection.exec_driver_sql(grants_sql(kind, name))
            url = make_url(database_url).set(username=name, password=PASSWORD)
            engines[kind] = create_engine(url)
    yield engines
    with shared_engine.begin() as connection:
        for kind, engine in engines.items():
            engine.dispose()
            quoted = connection.dialect.identifier_preparer.quote(NAME.format(kind))
            connection.exec_driver_sql(f"DROP OWNED BY {quoted}")
            connection.exec_driver_sql(f"DROP ROLE {quoted}")


class Rows:
    def __init__(self, engine: Engine) -> None:
        with engine.begin() as connection:
            self.waiting = pending_task(connection)
            self.running = claimed_task(connection)
            failed = claimed_task(connection)
            cause = Cause("E", "m")
            settle.settle_one(connection, ending(failed, Event.FAIL, cause=cause))
            self.failed = failed.task_id
            self.owner = engine.url.username


def run(connection: Connection, rows: Rows) -> None:
    """All that a worker's child does in a life."""
    check_schema(connection)
    heartbeats.write_heartbeat(connection, owner="w", node="n", queues=["default"], handlers=["t"])
    scan.find_due(connection, {"default": 10})
    task = claimed_task(connection, rows.waiting)
    write_value(connection, LARGE, task.task_id, RESULT)
    settle.settle_group(connection, [ending(task)])
    leader_lease.acquire_lease(
        connection, "scan", holder="h", token=uuid4(), rank=1, ttl=timedelta(seconds=1)
    )
    leases.rescue_expired(connection, lease=timedelta(0), max_crashes=1)


def look(connection: Connection, rows: Rows) -> None:
    """All that somebody looks at."""
    assert browse.get(connection, rows.waiting)
    assert browse.find_tasks(connection)
    browse.failed_attempts(connection, rows.failed)
    browse.count_tasks(connection)
    heartbeats.live_workers(connection, timedelta(seconds=1))
    queue_settings.find_pauses(connection)
    assert explain_task(connection, rows.waiting).known


def lock_something(connection: Connection, _: Rows) -> None:
    """All that somebody does who holds one."""
    ask = LockRequest(
        uuid4(), lock_parts(exclusive="a", counted={"b": 2}), "w", timedelta(seconds=1)
    )
    insert_resources(connection, ask)
    assert isinstance(acquire(connection, ask), GrantedLocks)
    acquire(connection, replace(ask, token=uuid4()), waits=True)
    acquire(connection, replace(ask, token=uuid4()))
    renew(connection, [ask.token], timedelta(0))
    assert guard(connection, ask.token)
    acquire(connection, replace(ask, token=uuid4()))
    release(connection, ask.token)


def split_a_batch(connection: Connection, _: Rows) -> None:
    """All that is done with the rows of the partition repository."""
    texts = tuple(Partition(n, range=span) for n, span in enumerate(ranges_between(["m"])))
    store.insert(connection, "p", Plan("test", KeyType.TEXT, texts))
    listed = Partition(0, PartitionKind.VALUES, values=("a",))
    ids = store.insert(connection, "q", Plan("test", KeyType.TEXT, (listed,)))
    partition_progress.set_status(connection, ids.values(), Status.ABANDONED, those=Status)
    store.remove(connection, "p")
    marks.clear(connection, "p")


def create_groups(connection: Connection) -> None:
    """All that is done with groups by those who create them."""
    outer = create_group(connection, [NewTask("t")], then=NewTask("t"))
    ends = {"then": NewTask("t"), "on_failure": NewTask("t")}
    create_group(connection, [NewTask("t")], part_of=outer.id, **ends)
    extend_group(connection, outer.id, [NewTask("t")])
    create_group(connection, [], then=NewTask("t", {"card": 1}))
    found = get_group(connection, outer.id)
    assert found is not None
    assert found.total == 3


def a_flow() -> Flow:
    flow = Flow("f")
    flow.step("b", "t", needs=[flow.step("a", "t"), event("k")])
    return flow


def more_of_a_flow() -> Flow:
    flow = Flow("f")
    flow.step("c", "t", needs="b")
    return flow


DO: dict[str, Callable[[Connection, Rows], object]] = {
    "create": lambda c, _: create_task(c, "t", unique_key="k"),
    "create many": lambda c, _: create_tasks(c, [NewTask("t"), NewTask("t")]),
    "create a large one": lambda c, _: create_one(c, a_row()._replace(payload=LARGE)),
    "create once": lambda c, _: create_task(c, "t", unique_key="k", unique_scope="forever"),
    "create for the queue": lambda c, _: [
        create_task(c, "t", unique_key="k", unique_scope="queued") for _ in range(2)
    ],
    "debounce": lambda c, _: [
        create_task(c, "t", unique_key="k", on_conflict="reschedule") for _ in range(2)
    ],
    "create a group": lambda c, _: create_groups(c),
    "create a flow": lambda c, _: [create_flow(c, a_flow(), key="k") for _ in range(2)],
    "send an event": lambda c, _: send_event(c, "k"),
    "send an event by SQL": lambda c, _: c.execute(text("SELECT task_send_event('k')")),
    "read events": lambda c, _: c.execute(text("SELECT payload FROM task_event")),
    "extend a flow": lambda c, _: extend_flow(c, create_flow(c, a_flow()).id, more_of_a_flow()),
    "read callbacks": lambda c, _: c.execute(text("SELECT then_row, on_failure FROM task_group")),
    "end a group": lambda c, _: c.execute(text("UPDATE task_group SET total = succeeded + failed")),
    "read batches": lambda c, _: c.execute(text("SELECT params FROM task_batch")),
    "end a batch": lambda c, _: c.execute(text("UPDATE task_batch SET status = 'ABANDONED'")),
    "prune keys": lambda c, _: unique_keys.prune_keys(c, 9),
    "create by SQL": lambda c, _: c.execute(text("SELECT task_create('t')")),
    "read large values": lambda c, _: c.execute(text("SELECT content FROM task_large_value")),
    "run": run,
    "see how a task stands": lambda c, rows: c.execute(text(STANDS), {"id": rows.waiting}).one(),
    "read a payload": lambda c, _: c.execute(text("SELECT payload FROM task_pending")),
    "read a waiting task": lambda c, _: c.execute(text("SELECT * FROM task_pending")),
    "read a fence": lambda c, _: c.execute(text("SELECT lease_token FROM task_pending")),
    "look": look,
    "read results": lambda c, _: c.execute(text("SELECT result FROM task_completed")),
    "cancel": lambda c, rows: cancel_task(c, rows.waiting),
    "requeue": lambda c, rows: requeue_task(c, rows.failed),
    "schedule": lambda c, _: create_schedule(c, "s", "t", every=60),
    "look at schedules": lambda c, _: (scheduling.find(c), c.execute(text(VIEW))),
    "lock": lock_something,
    "free a lock": lambda c, _: c.execute(text("DELETE FROM task_lock_holder")),
    "look at locks": lambda c, _: c.execute(text("SELECT FROM task_locks, task_lock_report")),
    "split a batch": split_a_batch,
    "look at partitions": lambda c, _: store.find_by_program(c, "p"),
    "pause": lambda c, _: queue_settings.pause(c, "mail", "why"),
    "note": lambda c, _: audit.note(c, "pause", {"queue": "q"}, who="ann"),
    "read the audit": lambda c, _: audit.find(c),
    "forge the audit": lambda c, _: c.execute(
        text("INSERT INTO task_audit (action, role) VALUES ('pause', 'somebody')")
    ),
    "date the audit back": lambda c, _: c.execute(
        text("INSERT INTO task_audit (action, at) VALUES ('pause', '2020-01-01')")
    ),
    "change the audit": lambda c, _: c.execute(text("UPDATE task_audit SET who = 'bob'")),
    "clear the audit": lambda c, _: c.execute(text("DELETE FROM task_audit")),
    "edit": lambda c, rows: change_payload(c, Pool.ERROR, rows.failed, "{}"),
    "forge a lease": lambda c, _: c.execute(text("DELETE FROM task_lease")),
    "clear history": lambda c, _: c.execute(text("DELETE FROM task_attempt")),
    "change a payload": lambda c, _: c.execute(text("UPDATE task_pending SET payload = '{}'")),
    "empty a pool": lambda c, _: c.execute(text("TRUNCATE task_error")),
    "change a table": lambda c, _: c.execute(text("ALTER TABLE task_error ADD COLUMN x int")),
    "drop a day": lambda c, _: c.execute(text("DROP TABLE task_completed_default")),
    "become another": lambda c, rows: c.execute(text(f'SET ROLE "{rows.owner}"')),
}
CREATE = {
    *("create", "create many", "create once", "create by SQL", "create a group"),
    *("create a flow", "extend a flow", "send an event", "send an event by SQL"),
    *("see how a task stands", "create a large one"),
}
READ = {
    *("see how a task stands", "read a payload", "read a waiting task", "read a fence"),
    "read large values",
    *("read callbacks", "read batches", "read events"),
}
AMEND = {*CREATE, "create for the queue", "debounce", "change a payload"}
MAY = {
    RoleKind.PRODUCER: CREATE,
    RoleKind.AMENDER: AMEND,
    RoleKind.LOCKER: {"lock", "free a lock", "read a fence"},
    RoleKind.WORKER: {
        *(*AMEND, *READ),
        *("end a group", "end a batch"),
        *("lock", "free a lock", "look at locks"),
        *("prune keys", "split a batch", "look at partitions"),
        *("run", "look", "read results", "cancel", "requeue", "pause"),
        *("schedule", "look at schedules", "note", "read the audit", "edit"),
        *("forge a lease", "clear history", "change a payload"),
    },
    RoleKind.READER: {
        *READ,
        *("look at locks", "look", "read results", "look at schedules", "read the audit"),
        "look at partitions",
    },
    RoleKind.ADMIN: {
        *READ,
        *("end a group", "end a batch"),
        *("free a lock", "look at locks", "split a batch", "look at partitions"),
        *("look", "read results", "cancel", "requeue", "pause", "schedule", "look at schedules"),
        *("note", "read the audit", "edit"),
        *("clear history", "prune keys"),
        *AMEND,
    },
}


@pytest.mark.parametrize("kind", RoleKind)
def test_a_role_may_do_its_own(
    engine: Engine, roles: dict[RoleKind, Engine], kind: RoleKind
) -> None:
    rows, may = Rows(engine), set()
    with roles[kind].connect() as connection:
        assert connection.execute(text("SELECT current_user")).scalar() == NAME.format(kind)
        for verb, act in DO.items():
            try:
                act(connection, rows)
                may.add(verb)
            except ProgrammingError as refusal:
                if not re.search("permission denied|must be owner", str(refusal)):
                    raise
            finally:
                connection.rollback()

    assert may == MAY[kind]


RELATIONS = text("""
    SELECT c.oid, c.relname AS name, c.relkind AS kind,
        array_agg(quote_ident(a.attname) ORDER BY a.attnum) AS columns,
        array_agg(format_type(a.atttypid, NULL) ORDER BY a.attnum) AS types,
        array_agg(quote_ident(a.attname)) FILTER (
            WHERE a.attgenerated <> '' OR a.attidentity = 'a') AS computed
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = CAST(current_schema AS regnamespace) AND c.relkind IN ('r', 'p', 'v')
      AND c.relname ~ '^tasks?_' AND a.attnum > 0 AND NOT a.attisdropped
    GROUP BY c.oid, c.relname, c.relkind
""")
SEQUENCES = text("""
    SELECT relname FROM pg_class WHERE relkind = 'S'
      AND relnamespace = CAST(current_schema AS regnamespace) AND relname LIKE 'task%'
""")
DEFINERS = text(
    """
    SELECT CAST(p.oid AS regprocedure)::text FROM pg_proc p
    WHERE p.prosecdef AND p.pronamespace = CAST(current_schema AS regnamespace)
""".replace("::", r"\:\:")
)
TRY = """
    DO $do$
    DECLARE each text; done jsonb := '[]'; number int := 0;
    BEGIN
        FOR each IN SELECT jsonb_array_elements_text($json${statements}$json$) LOOP
            BEGIN
                EXECUTE each;
                done := done || to_jsonb(number);
            EXCEPTION WHEN insufficient_privilege THEN NULL;
                WHEN not_null_violation THEN done := done || to_jsonb(number);
            END;
            number := number + 1;
        END LOOP;
        PERFORM set_config('tasks_app.done', done::text, true);
    END $do$
"""
Right = tuple[str, str, str]
"""A table, a column or nothing, and what may be done with it."""


def statements(connection: Connection) -> dict[Right, str]:
    """Every statement that could be granted by column or by table, on all tables and views."""
    found: dict[Right, str] = {}
    for name in connection.execute(SEQUENCES).scalars():
        found[name, "", "USAGE"] = f"SELECT nextval('{name}')"
        found[name, "", "SELECT"] = f"SELECT last_value FROM {name}"
        found[name, "", "UPDATE"] = f"SELECT setval('{name}', 1, false)"
    for name in connection.execute(DEFINERS).scalars():
        nulls = ", ".join(f"NULL::{kind}" for kind in re.findall(r"[(,]([^,)]+)", name))
        found[name, "", "EXECUTE"] = f"SELECT {name.partition('(')[0]}({nulls})"
    for row in connection.execute(RELATIONS):
        for column, kind in zip(row.columns, row.types, strict=True):
            found[row.name, column, "SELECT"] = f"SELECT {column} FROM {row.name} LIMIT 0"
            if row.kind != "v" and column not in (row.computed or ()):
                found[row.name, column, "INSERT"] = (
                    f"INSERT INTO {row.name} ({column}) SELECT NULL::{kind} WHERE false"
                )
                found[row.name, column, "UPDATE"] = (
                    f"UPDATE {row.name} SET {column} = NULL WHERE false"
                )
        if row.kind != "v":
            found[row.name, "", "DELETE"] = f"DELETE FROM {row.name} WHERE false"
            found[row.name, "", "TRUNCATE"] = f"TRUNCATE {row.name} CASCADE"
    return found


def granted(kind: RoleKind, possible: Iterable[Right]) -> set[Right]:
    """What the declaration says, read as a person would read it."""
    said: set[Right] = set()
    for grant in grants_sql(kind, "x").splitlines():
        whats, on = re.fullmatch(
            r'GRANT (.+?) ON (?:SEQUENCE |FUNCTION )?(.+) TO "x";', grant
        ).groups()
        for what, columns in re.findall(r"([A-Z]+)(?: \(([^)]*)\))?", whats):
            # a function with its types
            whole = re.sub(r", (bigint|text|jsonb|\w+\[\])", r",\1", on)
            for table in re.findall(r"\w+(?:\([^)]*\))?", whole):
                named = columns.split(", ") if columns else ()
                said |= {
                    right
                    for right in possible
                    if right[0] == table and right[2] == what and (not named or right[1] in named)
                }
    return said


@pytest.mark.test_all
@pytest.mark.parametrize("kind", RoleKind)
def test_of_all_statements_a_role_may_those_that_are_declared(
    engine: Engine, roles: dict[RoleKind, Engine], kind: RoleKind
) -> None:
    with engine.connect() as connection:
        possible = statements(connection)
    with roles[kind].connect() as connection:
        tries = json.dumps(list(possible.values()))
        connection.exec_driver_sql(TRY.replace("{statements}", tries).replace("%", "%%"))
        done = json.loads(connection.exec_driver_sql("SHOW tasks_app.done").scalar_one())
        connection.rollback()
    rights = list(possible)

    may = {rights[number] for number in done}

    assert may == granted(kind, possible)
    assert len(may) < len(rights)


@pytest.fixture
def trigger(engine: Engine) -> Iterator[None]:
    """It is installed; nobody else's tests meet it."""
    with engine.begin() as connection:
        assert notifications.install_trigger(connection)
    yield
    with engine.begin() as connection:
        assert notifications.remove_trigger(connection)


@pytest.fixture
def ear(database_url: str) -> Iterator[Connection]:
    with dedicated_connection(Database(database_url)) as connection:
        listen(connection)
        yield connection


@contextmanager
def told(ear: Connection, queues: set[str]) -> Iterator[None]:
    """These queues are told of, and before them no other: notices come in order of commits."""
    yield
    heard: set[str] = set()
    until(lambda: heard.update(received_queues(ear)) or heard >= queues)
    assert heard == queues


@pytest.mark.usefixtures("trigger")
def test_it_tells_of_tasks_that_sql_creates(engine: Engine, ear: Connection) -> None:
    with told(ear, {"default", "mail"}), engine.begin() as connection:
        connection.execute(text("SELECT task_create('t')"))
        connection.execute(
            text("SELECT task_create('t', queue => 'mail') FROM generate_series(1, 3)")
        )
        ear.execute(text("SELECT 1"))
        assert received_queues(ear) == set()


@pytest.mark.usefixtures("trigger")
def test_nothing_is_told_of_rollbacks_and_what_cannot_run(engine: Engine, ear: Connection) -> None:
    with engine.begin() as connection:
        create_task(connection, "t", queue="later", delay="1h")
        create_task(connection, "t", queue="off", enabled=False)
        connection.execute(
            text(
                "INSERT INTO task_pending (name, queue, due_at, scan_at)"
                " VALUES ('t', 'parked', now(), now() + CAST(:wait AS interval))"
            ),
            {"wait": timedelta(seconds=3)},
        )
    with engine.connect() as connection:
        create_task(connection, "t", queue="undone")
        connection.rollback()

    with told(ear, {"last"}), engine.begin() as connection:
        create_task(connection, "t", queue="last")


@pytest.mark.usefixtures("trigger")
def test_one_notice_a_queue_for_many_tasks(engine: Engine, database_url: str) -> None:
    with dedicated_connection(Database(database_url)) as ear:
        listen(ear)
        pgconn = ear.connection.dbapi_connection.pgconn  # type: ignore[union-attr]
        notices = []
        with engine.begin() as connection:
            create_tasks(connection, [NewTask("t")] * 2_000)  # by COPY

        def told() -> bool:
            pgconn.consume_input()
            while notice := pgconn.notifies():
                notices.append(notice.extra)
            return bool(notices)

        until(told)
        assert notices == [b"default"]


def test_what_is_there_is_not_made_again(engine: Engine) -> None:
    with engine.begin() as connection:
        assert not notifications.is_trigger_installed(connection)
        assert not notifications.remove_trigger(connection)
        assert notifications.install_trigger(connection)
        assert not notifications.install_trigger(connection)
        assert notifications.is_trigger_installed(connection)
        assert notifications.remove_trigger(connection)


@pytest.mark.usefixtures("trigger")
def test_a_producer_needs_no_more_rights(engine: Engine, ear: Connection) -> None:
    role = named("told")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE ROLE {role}"))
        for statement in grants_sql(RoleKind.PRODUCER, role).splitlines():
            connection.exec_driver_sql(statement.replace("%", "%%"))
        connection.execute(text(f"SET ROLE {role}"))
        create_task(connection, "t", queue="mail")
        connection.execute(text("RESET ROLE"))
        connection.execute(text(f"DROP OWNED BY {role}"))
        connection.execute(text(f"DROP ROLE {role}"))
        with told(ear, {"mail"}):
            connection.commit()


NO_VALUES = """
pending,completed,error  name queue state retry owner
pending          parked_kind
alert            advice opened_to closed_to
alert_look       holder
attempt          event owner
audit            action
batch            job status
batch_skip       step
batch_step       step status
breaker          dependency names state mode
breaker_count,breaker_held  dependency
calendar         name
count,total      name queue
count_part       slot name queue
fingerprint      fingerprint
flow_need        step needs after
flow_step        step task_name ended undo
group            outcome flow when_failed
key              name scope
large_value      kind
lease            name holder notes
limit            kind changed_by
lock_part,lock_wait  mode
lock_wait        outcome
marker           program_id state
pace             name
partition        program_id step kind key_type key_column view_name status
partition_value  program_id
queue            queue shut only_while retry
queue_fair       queue changed_by
queue_pause      queue
queue_window     queue zone calendar
schedule         name task queue kind expression zone missed overlap last_outcome
schedule         declared_in changed_by
schedule_fire    outcome
step             name
transition       event from_state to_state owner
worker           owner node queues handlers stacks
"""
"""Columns of names of code and of queues, and of words of ours."""
COLUMNS = text("""
    SELECT c.relname || '.' || a.attname FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_type t ON t.oid = a.atttypid
    WHERE c.relnamespace = CAST(current_schema AS regnamespace) AND c.relkind IN ('r', 'p')
      AND NOT c.relispartition AND c.relname LIKE 'task\\_%'
      AND NOT (t.typcategory IN ('N', 'B', 'D', 'T') OR t.typname IN ('uuid', '_int8', '_int2',
        '_date'))
""")
"""Those of a type that could hold a text: neither a number, a truth, an instant nor a list."""


def unlisted(connection: Connection) -> set[str]:
    words = {
        f"task_{table}.{column}"
        for tables, *columns in map(str.split, NO_VALUES.strip().splitlines())
        for table in tables.split(",")
        for column in columns
    }
    listed = {value.name for value in USER_VALUES}
    assert not words & listed
    assert len(listed) == len(USER_VALUES)
    return set(connection.execute(COLUMNS).scalars()) ^ (words | listed)


def test_every_column_of_the_schema_is_listed(connection: Connection) -> None:
    assert unlisted(connection) == set()


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ("ALTER TABLE task_pending ADD COLUMN colour text", {"task_pending.colour"}),
        ("ALTER TABLE task_group ADD COLUMN colours jsonb", {"task_group.colours"}),
        ("CREATE TABLE task_colour (id int, name bytea)", {"task_colour.name"}),
    ],
)
def test_a_new_one_is_missed(connection: Connection, change: str, missing: set[str]) -> None:
    connection.exec_driver_sql(change)
    assert unlisted(connection) == missing


def test_it_says_what_is_encrypted(connection: Connection) -> None:
    places = {place.name.partition(" ")[0] for place in PLACES}
    assert {value.name for value in USER_VALUES if value.encrypted} == places


def test_it_says_what_is_exported(connection: Connection) -> None:
    (row,) = transfer.export_rows(connection, [pending_task(connection)])
    of_pending = {value.column for value in USER_VALUES if value.table == "task_pending"}
    exported = {value.name for value in USER_VALUES if value.exported}
    assert exported == {f"task_pending.{column}" for column in of_pending & set(row._mapping)}
