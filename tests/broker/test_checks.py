"""Checks at a worker's start."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import psutil
import pytest
from celery import Celery
from sqlalchemy import Engine, create_engine, make_url, text

from tasks_app import Settings
from tasks_app.broker.checks import check_environment, check_pool, exit_on_error
from tasks_app.domain.errors import ConfigurationError
from tasks_app.monitor.checks.database import connections
from tests.broker.celery_process import HOUSE, CeleryProcess
from tests.broker.conftest import STATES, House, begin_life, effects_of
from tests.clock import until
from tests.servers import Databases, named

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

CHILDREN = 2


@contextmanager
def celery(house: House) -> Iterator[int]:
    worker = house.worker(children=CHILDREN)
    yield worker.pid
    worker.stop()


@contextmanager
def work(house: House) -> Iterator[int]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TASKS_APP_")}
    parent = subprocess.Popen(
        [sys.executable, "-m", "tasks_app", "work", "-c", str(CHILDREN)],
        env={**kept, **house.environment(), "PYTHONPATH": str(HOUSE)},
        stderr=subprocess.DEVNULL,
    )
    until(lambda: house.sql("SELECT count(*) FROM task_worker") == CHILDREN, 30)
    yield parent.pid
    parent.terminate()
    parent.wait(30)


def taken(parent: int, url: str) -> list[int]:
    """How many connections to the database each child has."""
    port = make_url(url).port
    return sorted(
        sum(
            c.status == psutil.CONN_ESTABLISHED and c.raddr.port == port
            for c in child.net_connections("tcp")
        )
        for child in psutil.Process(parent).children()
    )


@pytest.mark.parametrize("started", [celery, work])
def test_children_take_as_many_as_doctor_says(
    house: House, started: Callable[[House], AbstractContextManager[int]]
) -> None:
    with started(house) as parent:
        house.over(house.create("who", 8 * CHILDREN))  # each writes by its own, for a while
        house.over(house.create("ok", 200))
        house.over(house.create("only.writes", 200))
        with house.engine.connect() as connection:
            (said,) = connections(connection, Settings(database_url=house.url))
        most = int(re.search(r"up to (\d+) of", said.fact)[1]) // CHILDREN
        seen: list[list[int]] = []

        def is_as_said() -> bool:
            """One that is replaced is counted twice for a moment."""
            seen.append([n for n in taken(parent, house.url) if n])
            return len(seen[-1]) == CHILDREN and set(seen[-1]) <= {most, most - 1}

        until(is_as_said, 10, f"{most} connections, or one fewer, of each child: {seen}")


PATIENT = {"TASKS_APP_LEASE": "15s"}
"""New children take seconds; nobody shall be rescued meanwhile."""
THREADS = 8
SERVED = """
    SELECT string_agg(queues[1] || ' x ' || threads, ', ' ORDER BY queues) FROM task_worker
"""
RUNNING = "SELECT count(*) FROM task_pending WHERE state = 'RUNNING' AND queue = :queue"
RESCUED = "SELECT count(*) FROM task_all WHERE crashes > 0"


def start(house: House, folder: Path) -> dict[str, CeleryProcess]:
    """Start a worker of each pool, each with a queue of its own."""
    folder.mkdir()
    (folder / "celeryconfig.py").write_text("worker_pool_start_method = 'spawn'\n")
    workers = {
        "solo": house.worker("-P", "solo", "-Q", "solo", ready=False),
        "threads": house.worker(
            "-P", "threads", "-Q", "threads", children=THREADS, ready=False, **PATIENT
        ),
        "spawn": house.worker("-Q", "spawn", folder=folder, ready=False, **PATIENT),
    }
    for name, worker in workers.items():
        house.ready(worker, children=2 if name == "spawn" else 1)
    return workers


@pytest.fixture(scope="module")
def workers(house: House, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CeleryProcess]:
    """One of each pool, beside a beat."""
    house.beat(**PATIENT)
    return start(house, tmp_path_factory.mktemp("pools") / "spawn")


@pytest.mark.parametrize("house", ["broker", "rabbitmq"], indirect=True, scope="module")
def test_every_pool_does_what_a_life_asks_for(
    house: House, workers: dict[str, CeleryProcess]
) -> None:
    assert house.sql(SERVED) == "solo x 1, spawn x 1, spawn x 1, threads x 8"
    lives = {queue: begin_life(house, queue) for queue in workers}
    leave = [i for queue in workers for i in house.create("leave", 2, queue=queue)]
    poison = house.create("poison", queue="spawn")
    assert house.over([*leave, *poison], 60) == {"FAILED": 7}
    for ids in lives.values():
        assert house.over(ids) == STATES
        assert effects_of(house, ids) == (13, 13)
    assert [a.kind for a in house.attempts(poison[0])] == ["process died"] * 3


@pytest.mark.parametrize("house", ["broker", "rabbitmq"], indirect=True, scope="module")
def test_every_pool_ends_in_good_order(house: House, workers: dict[str, CeleryProcess]) -> None:
    """What runs ends, what waits goes back, nobody is charged."""
    slow = {q: house.create("slow", payload={"seconds": 2.0}, queue=q) for q in workers}
    for queue in workers:
        until(lambda queue=queue: house.sql(RUNNING, queue=queue))
        house.create("brief", 20, queue=queue)

    for worker in workers.values():
        worker.ask()
    status = {queue: worker.wait() for queue, worker in workers.items()}

    assert status == dict.fromkeys(workers, 0)
    for queue in workers:
        assert house.task(slow[queue][0]).state == "SUCCEEDED"
        assert house.sql(RUNNING, queue=queue) == 0
    assert house.sql("SELECT count(*) FROM task_all WHERE failures + crashes > 0") == 0
    assert house.sql("SELECT count(*) FROM task_worker") == 0


@pytest.mark.parametrize("house", ["broker", "rabbitmq"], indirect=True, scope="module")
def test_every_pool_is_killed_and_another_worker_goes_on(house: House, tmp_path: Path) -> None:
    """SIGKILL to parent and children charges nobody; neither lease nor distance is waited for."""
    workers = start(house, tmp_path / "killed")
    ids = [i for q in workers for i in house.create("slow", 2, {"seconds": 2.0}, queue=q)]
    for queue in workers:
        until(lambda queue=queue: house.sql(RUNNING, queue=queue))
    for worker in workers.values():
        worker.signal_all(signal.SIGKILL)
        worker.wait()
    on_board = [i for i in ids if house.task(i).state == "RUNNING"]
    house.sql("UPDATE task_pending SET lease_until = now() WHERE state = 'RUNNING'")
    start(house, tmp_path / "next")
    until(lambda: house.sql(RESCUED) == len(on_board), 20, "the rescue")
    house.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")

    assert house.over(ids, 60) == {"SUCCEEDED": len(ids)}
    assert effects_of(house, ids) == (len(ids), len(ids))
    assert {house.task(i).failures for i in ids} == {0}
    assert {house.task(i).crashes for i in on_board} == {1}


@pytest.fixture
def empty_url(databases: Databases) -> Iterator[str]:
    yield databases.create("nothing_yet")
    databases.drop("nothing_yet")


def last_words(house: House, command: str, ends_with: int = 2, **environment: str) -> str:
    """Start it; return all that it said before it ended by itself."""
    process = house.start(command, **environment)
    status = process.wait(60)
    assert status == ends_with
    assert "Traceback" not in process.log()
    return process.log()


@pytest.mark.parametrize("command", ["worker", "beat"])
def test_a_database_without_schema_is_refused(house: House, empty_url: str, command: str) -> None:
    said = last_words(house, command, 1, TASKS_APP_DATABASE_URL=empty_url)
    assert re.search("The schema is missing; .*Run: tasks-app migrate$", said, re.MULTILINE)


@pytest.mark.parametrize("command", ["worker", "beat"])
@pytest.mark.usefixtures("postgres")  # which asks for passwords
def test_a_password_that_is_refused_is_said(house: House, command: str) -> None:
    url = make_url(house.url).set(password="s3cret").render_as_string(hide_password=False)
    said = last_words(house, command, TASKS_APP_DATABASE_URL=url)
    assert re.search("refuses role .*: password authentication failed", said)
    assert "s3cret" not in said


def test_a_database_that_forgets_commits_is_said(house: House) -> None:
    house.sql("ALTER ROLE current_user SET synchronous_commit = off")
    try:
        process = house.start("worker", "-l", "INFO")
        process.says("The database has synchronous_commit = off: a crash of the server loses")
    finally:
        house.sql("ALTER ROLE current_user RESET synchronous_commit")
        process.end()


def test_a_misspelt_setting_is_said(house: House) -> None:
    process = house.start("worker", "-l", "INFO", TASKS_APP_LEAS="5s")
    try:
        process.says(
            "TASKS_APP_LEAS is unknown; perhaps TASKS_APP_LEASE is meant. No setting has this name"
        )
    finally:
        process.end()


GREEN = "gevent and eventlet are refused"
LIMITS = "late (timeout), hang (hard_timeout), stuck.async (hard_timeout): in it nothing"


@pytest.mark.parametrize(
    ("config", "arguments", "environment", "words"),
    [
        # Celery logs what a signal's receiver raises: the worker looked healthy and knew no task.
        ("", (), {"TASKS_APP_IMPORTS": "hose_handlers"}, "TASKS_APP_IMPORTS names hose_handlers"),
        ("", (), {"TASKS_APP_SCHEMA": "Bad-Schema"}, "TASKS_APP_SCHEMA is wrong: use a "),
        ("", (), {"TASKS_APP_LEASE": "soon"}, "TASKS_APP_LEASE is wrong: use a "),
        ("worker_pool = 'gevent'\n", (), {}, GREEN),
        ("", ("-P", "threads"), {}, f"{LIMITS}|Serve their queues with --pool=prefork"),
    ],
    ids=["module", "schema", "lease", "green threads", "limits"],
)
def test_a_worker_that_cannot_work_ends_with_one_sentence(
    house: House,
    tmp_path: Path,
    config: str,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    words: str,
) -> None:
    (tmp_path / "celeryconfig.py").write_text(config)
    process = house.start("worker", *arguments, folder=tmp_path, **environment)
    assert process.wait(60) == 2
    for each in words.split("|"):
        assert each in process.log()
    assert not environment or words in process.log().strip().splitlines()[-1]
    assert "Traceback" not in process.log()


def refusal(broker: str | None = "redis://127.0.0.1/0", **settings: str) -> str:
    """What a process says when it ends because of its surroundings."""
    app = Celery(broker=broker)
    with pytest.raises(SystemExit) as end:
        check_environment(app, Settings(**settings))
    return str(end.value)


def test_an_old_schema_is_refused(empty_url: str) -> None:
    engine = create_engine(empty_url)
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE tasks_app_version (version_num text, oldest_code text)")
        )
        connection.execute(text("INSERT INTO tasks_app_version VALUES ('0000', '0000')"))
    engine.dispose()
    said = refusal(database_url=empty_url)
    assert said.startswith("The schema has version 0000;")
    assert said.endswith("Run: tasks-app migrate")


@pytest.mark.parametrize(
    ("broker", "url", "words"),
    [
        # Celery would try its own default, an AMQP server on this machine, again and again.
        (None, "postgresql+psycopg:///x", "TASKS_APP_BROKER_URL"),
        ("redis://127.0.0.1/0", "", "TASKS_APP_DATABASE_URL"),
        ("redis://127.0.0.1/0", "postgresql+psycopg://u:secret@127.0.0.1:1/x", "does not answer"),
    ],
)
def test_a_missing_server_is_said_without_its_secrets(
    monkeypatch: pytest.MonkeyPatch, broker: str | None, url: str, words: str
) -> None:
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", "")
    said = refusal(broker, **({"database_url": url} if url else {}))
    assert words in said
    assert "secret" not in said


def test_a_role_without_privileges_is_said(database_url: str, engine: Engine) -> None:
    role = named("nobody")
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'nothing'"))
    try:
        url = make_url(database_url).set(username=role, password="nothing")
        said = refusal(database_url=url.render_as_string(hide_password=False))
    finally:
        with engine.begin() as connection:
            connection.execute(text(f"DROP ROLE {role}"))
    assert said.startswith("This database role may not do that. ")
    assert "tasks-app grants" in said


def test_what_breaks_in_a_module_of_handlers_ends_the_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @exit_on_error
    def receive(**_: object) -> None:
        raise LookupError("no shop")

    with pytest.raises(SystemExit) as end:
        receive(sender=None)
    assert end.value.code == 1
    assert "no shop" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pool", "refused"),
    [
        *(("gevent", True), ("eventlet", True)),
        *(("prefork", False), ("threads", False), ("solo", False)),
    ],
)
def test_only_a_pool_of_green_threads_is_refused(pool: str, refused: bool) -> None:
    with pytest.raises(ConfigurationError, match=GREEN) if refused else nullcontext():
        check_pool(pool)
