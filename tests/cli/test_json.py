"""Every verb that prints or does something has ``--json``, and prints one JSON document."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import pytest
from sqlalchemy import Engine, text

from tasks_app import Breaker, NewTask, create_group, locks
from tasks_app.batch.progress import JobProgress
from tasks_app.batch.validate import split
from tasks_app.domain.encryption import new_key
from tasks_app.domain.partition.records import Table
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.embedded.stack import Stack
from tasks_app.locks import LockLostError
from tasks_app.pool.batch import instances
from tasks_app.pool.batch.sources import buckets
from tasks_app.pool.flow_control import circuit_breakers
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_one
from tasks_app.runtime.encryption.encryption import encryption
from tests.cli.shell import Shell, commands
from tests.factory import claimer, ending, pending_task

EXEMPT = {"dashboard", "demo", "metrics"}
"""A show, for people: what it checks is its exit code."""
IN_A_FOLDER = {"up", "urls", "down"}
IN_A_PROCESS = {"alerts watch", "dashboard", "demo", "metrics", "work"}
TYPED = """
migrate
migrate --check
migrate --sql
grants worker --role somebody
config
doctor
report
healthz --role db
create cli.echo '{"n": 1}' --queue mail --delay 1h
list
stats
show {task}
explain {task}
cancel {task}
requeue {task} {task}
cancel --name cli.echo --dry-run
cancel --name cli.echo --first 1
rest {bulk}
rest {bulk} --dry-run
edit --name t --set 'n=1'
run-now {task}
reschedule {task} --in 2h
reprioritise {task} --to 0
move {task} --to slow
hold --name cli.echo --dry-run
hold --name cli.echo
release {task}
enable {task}
disable {task}
export tasks.jsonl --name nobody
import tasks.jsonl
cancel-moved tasks.jsonl.moved
maintain
maintain --reindex
audit
audit {bulk}
alerts list
encryption new-key k2
encryption status
encryption rotate
erase --biz-key order:42
errors fill
errors show 2a15a26ad4bbc789
errors requeue 2a15a26ad4bbc789 --dry-run
errors known 2a15a26ad4bbc789
errors unknown 2a15a26ad4bbc789
pause mail
resume mail
pause --all
resume --all
queues list
queues show mail
queues set mail --running-below 5
queues list
queues show mail
queues pause mail
queues resume mail
queues remove mail
queues calendar holidays 2026-12-25
queues calendar
queues calendar holidays --remove
limits set name t --most 3
limits list
limits remove name t
breakers list
breakers open bank
breakers close bank
breakers auto bank
fair mail --weight gold=3
fair
fair mail --off
locks list
locks report
locks waits
locks free account:7
locks limit license:sap 5
groups list
groups show {group}
groups cancel {group}
schedules add night cli.echo --cron '0 2 * * *'
schedules list
schedules show night
schedules change night --queue mail
schedules disable night
schedules enable night
schedules preview night
schedules run night
schedules backfill night 2026-01-01T00:00:00Z 2026-01-03T00:00:00Z
schedules remove night
batch validate payroll '{"month": "2026-10"}'
batch plan payroll '{"month": "2026-10"}' --dry-run
batch start payroll '{"month": "2026-10"}'
batch list
batch show {batch}
batch partitions {batch}
batch replan {batch} --step check --divide 2
batch stop {batch}
batch restart {batch}
batch rebalance person bucket 4
batch stop {batch}
batch abandon {batch}
prune --dry-run
prune
scan
unblock {failed}
notify install
notify status
notify remove
db-scheduler install --functions-only
db-scheduler status
db-scheduler remove
"""


def leaves() -> dict[str, click.Command]:
    """Every verb, groups not."""
    return {
        " ".join(words): command
        for words, command in commands()
        if not isinstance(command, click.Group) and not command.hidden
    }


def verb_of(words: list[str]) -> str:
    two = " ".join(words[:2])
    return two if two in leaves() else words[0]


def test_every_verb_has_the_option() -> None:
    without = {
        verb
        for verb, command in leaves().items()
        if not any("--json" in parameter.opts for parameter in command.params)
    }

    assert without == EXEMPT


def test_every_verb_is_typed_here() -> None:
    typed = {verb_of(shlex.split(line)) for line in TYPED.split("\n") if line}

    assert typed | IN_A_FOLDER | IN_A_PROCESS == set(leaves())


@pytest.fixture
def known(run: Shell, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the commands are about."""
    monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", f"k1:{new_key()}")
    encryption.cache_clear()
    with engine.begin() as connection:
        circuit_breakers.synchronise(connection, {Breaker("bank"): ["pay"]}, ["pay"])
        buckets.add_bucket(connection, Table("person"), "bucket", 2)
        blocks = pending_task(connection, order_key="k")
        (blocking,) = claim(connection, [blocks], claimer(), uuid4(), admitted=True)
        settle_one(connection, ending(blocking, Event.FAIL, failures=1, cause=Cause("E", "m")))
        ids = {
            "task": pending_task(connection),
            "group": create_group(connection, [NewTask("t")]).id,
            "failed": blocking.task_id,
        }
    with suppress(LockLostError), locks.hold(engine, exclusive="account:7", who="teller"):
        yield ids
    with engine.begin() as connection:
        connection.execute(text('DROP FUNCTION IF EXISTS "person:tasks_app:bucket:4" CASCADE'))
    encryption.cache_clear()


def launched(engine: Engine, batch_id: int) -> None:
    """The first step of a job runs, as its plan does it, which no worker has run."""
    job = sys.modules["tasks_app.batch.job"].JOBS["payroll"]
    with engine.begin() as connection:
        locked = instances.lock(connection, batch_id)
        assert locked is not None
        progress, check = JobProgress(job, connection, locked), job.steps["check"]
        progress.insert_plan(check, split(connection, check, None))
        progress.start_partitions(check)


def ended(engine: Engine) -> None:
    """The last task of what was stopped has ended."""
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM task_pending WHERE biz_key LIKE 'batch:%'"))
        for table in ("task_batch", "task_batch_step"):
            stop = f"UPDATE {table} SET status = 'STOPPED', ended_at = coalesce(ended_at, now())"
            connection.execute(text(stop))


@pytest.mark.test_all
def test_each_prints_one_document(
    run: Shell,
    known: dict[str, Any],
    engine: Engine,
    stack: Stack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TASKS_APP_BROKER_URL", stack.urls.broker)
    for line in filter(None, TYPED.split("\n")):
        words = shlex.split(line)
        typed = [
            known[word.strip("{}")] if word[0] + word[-1] == "{}" and word[1].isalpha() else word
            for word in words
        ]
        if line.startswith("batch replan"):
            launched(engine, known["batch"])
        if line.startswith(("batch restart", "batch abandon")):
            ended(engine)

        done = run(*map(str, typed), "--json")

        assert done.returncode in (0, 1), (line, done)
        assert "Traceback" not in done.stderr
        value = document(line, done.stdout)
        if "--first" in words:
            known["bulk"] = value["token"]
        if words[:2] == ["batch", "start"]:
            known["batch"] = value["batch_id"]


@pytest.mark.test_all
@pytest.mark.test_all
def test_the_servers_and_a_drain_print_one_document(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(monkeypatch, open_folder)
    (open_folder / "json_handlers.py").write_text(
        "from tasks_app import handler\n\n@handler('t')\ndef t(ctx):\n    pass\n"
    )
    monkeypatch.setenv("TASKS_APP_IMPORTS", "json_handlers")
    try:
        started = document("up", shell("up", "-d", "--json").stdout)
        urls = document("urls", shell("urls", "--json").stdout)
        for name, value in urls.items():
            monkeypatch.setenv(name, value)
        assert shell("migrate").returncode == 0
        shell("create", "t")
        drained = document("work", shell.process("work", "--drain", "--json").stdout)
    finally:
        stopped = document("down", shell("down", "--json").stdout)

    assert [server["name"] for server in started] == ["PostgreSQL", "Valkey"]
    assert drained == {"ran": {"SUCCEEDED": 1}, "left": [], "refused": [], "stopped_by": None}
    assert stopped == {"stopped": True}


def document(line: str, printed: str) -> Any:
    try:
        return json.loads(printed)
    except ValueError:
        pytest.fail(f"{line} printed {printed!r}")
