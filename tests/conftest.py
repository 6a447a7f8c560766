"""Real servers for the whole session, started from wheels in a folder of their own."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from celery import _state
from celery.app import builtins  # noqa: F401  its tasks are no test's
from hypothesis import settings
from sqlalchemy import Connection, Engine, NullPool, create_engine, make_url, text

from tasks_app.batch.job import JOBS
from tasks_app.embedded import servers
from tasks_app.embedded.servers import Postgres, Valkey
from tasks_app.embedded.stack import Stack, temporary
from tasks_app.pool.retention import add_partition, missing_partitions
from tasks_app.pool.schema import migrate
from tasks_app.runtime.handlers.registry import HANDLERS
from tests import environment, tiers
from tests.broker.celery_process import LOGS
from tests.environment import WARM
from tests.servers import GIVEN, NOT_OURS, Databases

HERE = Path(__file__).parent

# What the tests commit is nothing to tell to the broker of whoever runs them.
os.environ.pop("TASKS_APP_BROKER_URL", None)

if os.environ.get("TASKS_APP_TEST_POSTGRES") == "16":
    servers.POSTGRES, servers.LOCALE = "pginstall", ()

# A shell ignores Ctrl-C for what it starts in the background, and so would each process of ours.
signal.signal(signal.SIGINT, signal.default_int_handler)

tiers.install()
environment.install()

# A shared machine is slow at times; that is no reason to fail.
settings.register_profile("tasks_app", deadline=None)
settings.load_profile("tasks_app")

TABLES = (
    "task_pending, task_completed, task_error, task_attempt, task_fingerprint, task_alert,"
    " task_transition, task_log, task_alert_look, task_worker,"
    " task_lease, task_queue_pause, task_pace, task_schedule, task_schedule_fire, task_key,"
    " task_lock, task_lock_holder, task_lock_part, task_lock_wait, task_audit, task_limit,"
    " task_gate,"
    " task_queue, task_queue_window, task_calendar,"
    " task_breaker, task_breaker_count, task_breaker_held, task_queue_fair,"
    " task_partition, task_partition_value, task_marker,"
    " task_group, task_group_ids, task_progress, task_step,"
    " task_batch, task_batch_step, task_batch_skip, task_count, task_count_part, task_total,"
    " task_import, task_large_value, task_flow_step, task_flow_need,"
    " task_event, task_event_wait"
)
LARGE = 100
"""Pages. To truncate a table costs a millisecond and more: few rows are deleted."""
EMPTY = f"""
    DO $$
    BEGIN
        IF EXISTS (
            SELECT FROM pg_class WHERE relkind = 'r' AND starts_with(relname, 'task_')
            AND pg_relation_size(oid) > {LARGE} * 8192)
        THEN
            TRUNCATE {TABLES};
        ELSE
            {"; ".join(f"DELETE FROM {table}" for table in TABLES.split(", "))};
        END IF;
        INSERT INTO task_lease (name, holder, token, rank, held_since, done_at)
            VALUES ('maintain', 'the last test', gen_random_uuid(), 0, now(), now());
    END $$
"""
"""Maintenance is as if just done: half of what a drain of one task takes would be maintenance."""


ORDER = os.environ.get("TASKS_APP_TEST_ORDER")
"""A number: files come in some order, which it decides."""
FIRST = (
    "edge",
    "peers",
    "examples",
    "broker",
    "embedded",
    "deployment",
    "cli",
    "runtime",
    "batch",
    "pool",
)
"""Folders whose files take long; at the end there is something for every job."""


LONGEST_LOG = 20_000
CASES = pytest.StashKey[set[str]]()
"""All that were collected, those included that this run leaves out."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test its tier, and put files in order."""
    tiers.mark(items)
    config.stash[CASES] = {item.nodeid for item in items}
    files = list(dict.fromkeys(item.path for item in items))
    if ORDER:
        Random(ORDER).shuffle(files)
    else:
        files.sort(key=lambda path: _place(path.relative_to(HERE).parts[0]))
    places = {path: place for place, path in enumerate(files)}
    items.sort(key=lambda item: places[item.path])


def _place(folder: str) -> int:
    return FIRST.index(folder) if folder in FIRST else len(FIRST)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Hold a test of the first tier to its rules; it may use warm connections."""
    WARM.turn(on=tiers.is_first(item) and "cold_connections" not in item.fixturenames)
    with tiers.guarding(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """The same."""
    with tiers.guarding(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, Any]:
    """Show the logs of the processes that a failed test leaves behind, before they are ended."""
    report = yield
    if report.failed:
        for title, log in LOGS.items():
            said = log.read_text(errors="replace") if log.exists() else "(nothing)"
            report.sections.append((f"log of {title}", said[-LONGEST_LOG:]))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not tested, one line a reason: a skipped test is easily overlooked."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = Counter(str(report.longrepr[-1]).removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section("NOT TESTED HERE", yellow=True, bold=True)
    for reason, number in reasons.most_common():
        terminalreporter.write_line(f"{number:4d} x {reason}", yellow=True)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """PostgreSQL and Valkey for the session, in a folder that is removed afterwards."""
    with ExitStack() as end:
        with tiers.servers_start():
            servers = end.enter_context(temporary())
            _hurry(servers.postgres)
        yield servers


def _hurry(postgres: Postgres) -> None:
    """Hash a password once instead of 4,096 times: tests open ten thousand connections."""
    url = make_url(postgres.url_of("postgres"))
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL scram_iterations = 1"))
        connection.execute(text(f"ALTER ROLE {url.username} PASSWORD '{url.password}'"))


@pytest.fixture(scope="session")
@tiers.starts_processes
def postgres(stack: Stack) -> Postgres:
    """The session's PostgreSQL, for tests that stop it."""
    if GIVEN:
        pytest.skip(NOT_OURS)
    return stack.postgres


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    """More databases on the session's server; those of the embedded one go with it."""
    if GIVEN:
        with Databases(GIVEN).guarded() as databases:
            yield databases
    else:
        yield Databases(request.getfixturevalue("postgres").url_of("postgres"))


@pytest.fixture(scope="session")
def broker(stack: Stack) -> Valkey:
    """The session's Valkey, which keeps nothing on disk."""
    return stack.valkey


@pytest.fixture(scope="session")
def database_url(databases: Databases) -> str:
    """A migrated database that the tests share; each cleans it before it starts."""
    url = databases.create("tasks")
    engine = create_engine(url)
    with engine.begin() as connection:
        migrate(connection)
    for day in _missing(engine):
        with engine.begin() as connection:
            add_partition(connection, day)
    engine.dispose()
    return url


def _missing(engine: Engine) -> list:
    with engine.connect() as connection:
        return missing_partitions(connection)


@pytest.fixture(scope="session")
def shared_engine(database_url: str) -> Iterator[Engine]:
    """Connections to the shared database."""
    engine = create_engine(
        database_url,
        isolation_level="READ COMMITTED",
        pool_size=20,
        # Workers' verbs are used here beside producers': a server that has JIT would compile them.
        connect_args={"options": "-c lock_timeout=20s -c jit=off"},
    )
    yield engine
    engine.dispose()


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    """The shared database, emptied; ids go on rising."""
    with shared_engine.begin() as connection:
        connection.exec_driver_sql(EMPTY)
    return shared_engine


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    """A transaction that is rolled back: for tests that need one connection only."""
    with engine.connect() as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def maintenance_due(engine: Engine) -> None:
    """Nobody has maintained the pool yet."""
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM task_lease WHERE name = 'maintain'")


@pytest.fixture
def cold_connections() -> None:
    """Nothing is left of a connection that is closed, as for users."""


@pytest.fixture
def healthy(engine: Engine) -> None:
    """Skip what needs a server that is set well."""
    with engine.connect() as connection:
        if connection.execute(text("SHOW autovacuum")).scalar() == "off":
            pytest.skip(f"{NOT_OURS}, and its autovacuum is off")


@pytest.fixture(autouse=True, scope="module")
def _own_tasks() -> Iterator[None]:
    """What one file declares is no other's: Celery gives each app's tasks to all later apps."""
    tasks, modules = set(_state._on_app_finalizers), {*sys.modules}
    known = [(each, dict(each)) for each in (HANDLERS.specs, HANDLERS.schedules, JOBS)]
    yield
    _state._on_app_finalizers.intersection_update(tasks)
    for spec in HANDLERS.specs.values():
        if spec.function.__module__ not in modules:  # who imports it again declares them again
            sys.modules.pop(spec.function.__module__, None)
    for each, as_it_was in known:
        each.clear()
        each.update(as_it_was)


@pytest.fixture
def project() -> Path:
    """The folder of this checkout."""
    return Path(__file__).parents[1]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder for servers: not ``tmp_path``, which pytest closes to the user they run as."""
    folder = Path(tempfile.mkdtemp(prefix="tasks_app-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_finish() -> None:
    """Let the collector leave alone what stays: the thousands of tests and their modules."""
    gc.collect()
    gc.freeze()
