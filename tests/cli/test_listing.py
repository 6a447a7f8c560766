"""Lists and JSON of commands."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from sqlalchemy import Engine, text

from tasks_app import Breaker, Flow, NewTask, TaskContext, create_flow, create_group, locks
from tasks_app.batch.progress import JobProgress
from tasks_app.batch.validate import split
from tasks_app.cli import doctor
from tasks_app.cli.doctor import _line
from tasks_app.cli.output import INDENT, cell, print_json, print_table, table_lines
from tasks_app.cli.task_views import _sentence
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.encryption import new_key
from tasks_app.domain.finding import Level, ok, warn
from tasks_app.domain.partition.records import Table
from tasks_app.domain.tasks.error_text import printable
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.embedded.stack import Stack
from tasks_app.locks import LockLostError
from tasks_app.pool.batch import instances
from tasks_app.pool.batch.sources import buckets
from tasks_app.pool.dispatch.set_aside import park_tasks
from tasks_app.pool.flow_control import circuit_breakers
from tasks_app.pool.flow_control.queue_settings import pause
from tasks_app.pool.runs.claim import Claims, claim
from tasks_app.pool.runs.settle import settle_one
from tasks_app.runtime.encryption.encryption import encryption
from tasks_app.runtime.handlers.registry import Registry, handler
from tests.cli.shell import Shell, commands
from tests.factory import claimed_task, claimer, ending, pending_task, unknown

CAUSE = Cause("smtplib.SMTPServerDisconnected", "Connection unexpectedly closed\nby the other side")


@pytest.fixture
def tasks(engine: Engine) -> dict[str, int]:
    with engine.begin() as connection:
        ids = {
            "later": pending_task(connection, delay="10m", biz_key="order:42"),
            "parked": pending_task(connection, "customer.points.grant.every.month"),
            "runs": claimed_task(connection).task_id,
        }
        again, over = claimed_task(connection), claimed_task(connection)
        retry = ending(again, Event.RETRY, failures=1, wait=timedelta(hours=3), cause=CAUSE)
        settle_one(connection, retry)
        settle_one(connection, ending(over, Event.FAIL, failures=3, cause=CAUSE))
        park_tasks(connection, [ids["parked"]], unknown("new"), timedelta(seconds=30))
        connection.execute(
            text("UPDATE task_error SET finished_at = now() - interval '185 s', due_at = now()")
        )
        return {**ids, "again": again.task_id, "failed": over.task_id}


def on_a_terminal(columns: int, *arguments: str) -> list[str]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(
        [sys.executable, "-m", "tasks_app", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    ) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                more = os.read(ours, 65_536)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            said += more
        assert process.wait(60) == 0, said
    os.close(ours)
    return said.decode().replace("\r\n", "\n").splitlines()


def line_of(lines: list[str], task_id: int) -> tuple[str, str]:
    """The line of a task, and the one below."""
    (at,) = [n for n, line in enumerate(lines) if line.split()[:1] == [str(task_id)]]
    return lines[at], lines[at + 1] if at + 1 < len(lines) else ""


@pytest.mark.test_all
def test_eighty_columns_hold_ages_whole_words_and_the_last_error(
    shell: Shell, tasks: dict[str, int]
) -> None:
    lines = on_a_terminal(80, "list")

    assert max(map(len, lines)) <= 80, lines
    assert lines[0].split() == ["id", "state", "when", "failures", "name", "queue", "biz_key"]
    assert "due in 9 min" in line_of(lines, tasks["later"])[0]
    assert "RUNNING  began " in line_of(lines, tasks["runs"])[0]
    assert line_of(lines, tasks["parked"])[1] == f"    {unknown('new')}"
    line, below = line_of(lines, tasks["again"])
    assert "due in 2 h" in line
    assert "1 of 3" in line
    assert below == ("    smtplib.SMTPServerDisconnected: Connection unexpectedly closed by the …")
    line, below = line_of(lines, tasks["failed"])
    assert "3 min ago" in line
    assert "SMTPServerDisconnected" in below


@pytest.mark.test_all
def test_a_wide_terminal_has_the_remark_beside(shell: Shell, tasks: dict[str, int]) -> None:
    lines = on_a_terminal(200, "list")
    assert lines[0].endswith("remark")
    assert line_of(lines, tasks["again"])[0].endswith("closed by the other side")


def test_columns_say_how_wide_a_pipe_is(
    shell: Shell, tasks: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    any_width = shell("list").stdout.splitlines()
    monkeypatch.setenv("COLUMNS", "80")
    narrow = shell("list").stdout.splitlines()
    assert len(any_width) == 1 + len(tasks)
    assert len(narrow) > len(any_width)
    assert max(map(len, narrow)) <= 80 < max(map(len, any_width))


def test_wide_and_json_keep_all(
    shell: Shell, tasks: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = shell("list", "--wide").stdout.splitlines()
    found = {task["id"]: task for task in shell.json("list")}
    assert len(lines) == 1 + len(tasks)
    assert "customer.points.grant.every.month" in line_of(lines, tasks["parked"])[0]
    assert line_of(lines, tasks["later"])[0].count("Z") == 3  # created, due, changed
    again = found[tasks["again"]]
    assert again["last_error"] == f"{CAUSE.kind}: {CAUSE.message}"
    assert again["due_at"].startswith("20")
    assert found[tasks["later"]]["last_error"] is None


def test_the_audit_says_how_long_ago_and_of_a_narrow_terminal_no_more_than_fits(
    shell: Shell, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shell(
        "pause",
        "mail",
        "--reason",
        "the provider is being maintained, says ann, for a while",
        "--for",
        "2h",
    )
    shell("limits", "set", "key", "tenant:*", "--most", "3")
    with engine.begin() as connection:
        connection.execute(text("UPDATE task_audit SET at = at - interval '125 s'"))

    lines = shell("audit").stdout.splitlines()
    wide = shell("audit", "--wide").stdout.splitlines()

    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["line", "when", "action", "tasks", "who"]
    assert len([line for line in lines if "2 min ago" in line]) == 2
    assert lines[-1].startswith("    queue=mail reason=the provider is being maintained, says ann")
    assert lines[-1].endswith(" …")
    assert wide[0].split() == ["line", "when", "action", "tasks", "who", "role", "what"]
    assert "resume_in=2h" in wide[-1]
    assert json.loads(shell("audit", "--json").stdout)[0]["role"]


def test_settings_are_not_broken(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = shell("config").stdout.splitlines()
    wide = shell("config", "--wide").stdout.splitlines()
    assert max(map(cell_len, lines)) <= 80
    at = next(n for n, line in enumerate(lines) if line.startswith("TASKS_APP_DATABASE_URL "))
    assert lines[at].endswith("environment")
    assert lines[at + 1].startswith(f"{INDENT}postgresql")
    assert re.search(r"^TASKS_APP_LEASE +30s +default$", "\n".join(lines), re.M)
    assert not [line for line in wide if line.startswith(" ")]


IDS = st.integers(1, 10**9).map(str)
CELLS = st.text(st.sampled_from("ab.:é注😀-"), max_size=40)
WORDS = st.lists(st.text(st.sampled_from("ab.:é注😀-"), min_size=1, max_size=12), max_size=30)


@pytest.mark.test_all
@given(
    rows=st.lists(st.tuples(IDS, CELLS, CELLS, WORDS.map(" ".join)), min_size=1, max_size=5),
    most=st.integers(60, 120),
)
def test_nothing_is_wider_than_the_terminal_and_no_word_below_is_broken(
    rows: list[tuple[str, str, str, str]], most: int
) -> None:
    remarks, columns = [row[3] for row in rows], ("one", "two", "three")
    lines = [
        *table_lines(columns, [r[:3] for r in rows], remarks, remark="why", most=most, cut=columns)
    ]
    assert max(map(cell_len, lines)) <= most
    words = {word for remark in remarks for word in remark.split()} | {"…"}
    if len(lines) > len(rows) + 1:
        below = [line for line in lines if line.startswith(INDENT) and line.strip()]
        assert all(set(line.split()) <= words for line in below)


def test_what_moves_the_cursor_does_not_reach_the_terminal() -> None:
    lines = table_lines(["key"], [["a\x1b[2Jb\n"]], ["one\ntwo\x07"], remark="why", most=None)
    assert list(lines) == ["key          why", r"a\x1b[2Jb\n  one two\x07"]


def test_what_drives_the_terminal_is_escaped_in_payloads_errors_and_advice() -> None:
    """Of rows that were written before causes were cleaned, too."""
    assert cell({"a": "\x1b\x9b\u202eé"}) == r'{"a": "\u001b\x9b\u202eé"}'
    assert cell("one\x1b[2J\n\ttwo\r") == "one\\x1b[2J\n\ttwo\\r"
    assert _sentence(ok("k", "fails\x1b[2J")) == r"fails\x1b[2J."


def test_json_has_no_raw_control_characters_and_the_same_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    strange = [chr(code) for code in range(0x10000) if not 0xD800 <= code <= 0xDFFF]
    value = {"é\x9b": ["\u202edesrever", "a\\\x7f", {"all": "".join(strange)}]}
    print_json(value)
    shown = capsys.readouterr().out
    assert shown == printable(shown, keep="\n")
    assert "é" in shown
    assert json.loads(shown) == value


def test_a_table_folds_its_cells_on_a_terminal_and_never_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(columns: str) -> list[str]:
        monkeypatch.setenv("COLUMNS", columns)
        print_table(("id", "what"), [(1, "x" * 30), (2, "two\nlines"), (3, None)])
        return capsys.readouterr().out.splitlines()

    assert printed("") == ["id  what", f"1   {'x' * 30}", "2   two", "    lines", "3"]
    assert printed("24") == [
        *("id  what", f"1   {'x' * 20}", f"    {'x' * 10}", "2   two", "    lines", "3")
    ]


@pytest.mark.test_all
def test_twenty_thousand_rows_take_no_long_time(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.process_time()
    print_table(("name", "tasks"), [(f"name.{n}", n) for n in range(20_000)])
    assert time.process_time() - began < 5
    assert capsys.readouterr().out.count("\n") == 20_001


def test_a_line_breaks_at_words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    line = _line(warn("failed", "1 of t: E: no.", "See: tasks-app errors show 00ff"))
    assert click.unstyle(line).splitlines() == [
        "warn  failed        1 of t: E: no. See:",
        "      tasks-app errors show 00ff",
    ]


def test_an_instant_is_not_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_table(
        ("dependency", "since", "why"), [("bank", datetime(2040, 1, 1, tzinfo=UTC), "x" * 30)]
    )
    assert "2040-01-01 00:00:00Z" in capsys.readouterr().out


def test_a_list_says_what_was_asked_for_and_what_is_paused(
    shell: Shell, tasks: dict[str, int], engine: Engine
) -> None:
    with engine.begin() as connection:
        pause(connection, "default", "")
    assert "its queue is paused" in line_of(shell("list").stdout.splitlines(), tasks["later"])[0]
    nothing = shell("list", "--name", "nothing.here").stdout
    assert nothing == "There is no task of --name nothing.here. To see all: tasks-app stats\n"


def test_doctor_names_a_timeout_with_which_no_worker_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = Registry()
    handler("slow", registry=known, timeout="2h")(_slow)
    monkeypatch.setattr(doctor, "HANDLERS", known)
    given = Settings(database_url="postgresql+psycopg://u@h/x")
    found = {each.subject: each for each in doctor._settings(given)}["handlers"]
    assert (found.level, found.fact[:40]) == (
        Level.FAIL,
        "timeout of slow is 2h, longer than the h",
    )


def _slow(ctx: TaskContext) -> None:
    pass


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
stacks --worker nobody
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
flows list
flows show {flow}
flows rerun {flow} --from pay
flows cancel {flow}
flows undo {flow}
events send order:7/ok
events list
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
    monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", f"k1:{new_key()}")
    encryption.cache_clear()
    flow = Flow("order")
    flow.step("pay", "t", undo="t")
    with engine.begin() as connection:
        circuit_breakers.synchronise(connection, {Breaker("bank"): ["pay"]}, ["pay"])
        buckets.add_bucket(connection, Table("person"), "bucket", 2)
        blocks = pending_task(connection, order_key="k")
        (blocking,) = claim(connection, [blocks], claimer(), uuid4(), Claims.ADMITTED)
        settle_one(connection, ending(blocking, Event.FAIL, failures=1, cause=Cause("E", "m")))
        ids = {
            "task": pending_task(connection),
            "group": create_group(connection, [NewTask("t")]).id,
            "flow": create_flow(connection, flow).id,
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
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM task_pending WHERE biz_key LIKE 'batch:%'"))
        for table in ("task_batch", "task_batch_step"):
            stop = f"UPDATE {table} SET status = 'STOPPED', ended_at = coalesce(ended_at, now())"
            connection.execute(text(stop))


@pytest.mark.test_all
def test_each_prints_one_document(
    run: Shell, known: dict[str, Any], engine: Engine, stack: Stack, monkeypatch: pytest.MonkeyPatch
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
