"""Commands on tasks."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import click
import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.cli import doctor, output
from tasks_app.cli.group import group
from tasks_app.pool.operations import audit
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.schema import newest
from tests.cli.conftest import ShellWith
from tests.cli.shell import Shell, commands, token_of
from tests.environment import run_program
from tests.factory import claimed_task, pending_task, pool_of_task
from tests.pool.database import NAME, drop_old_days, failed, finished, old_day
from tests.runtime.api.acts import make
from tests.servers import Databases


def test_a_created_task_is_listed_shown_and_counted(shell: Shell) -> None:
    created = shell("create", "cli.echo", '{"n": 1}', "--biz-key", "order:1", "--delay", "1h")
    task_id = int(created.stdout)
    (listed,) = shell.json("list", "--biz-key", "order:1")
    shown = shell.json("show", str(task_id))
    (count,) = shell.json("stats")
    assert created.returncode == 0
    assert listed["id"] == task_id
    assert shown["task"]["payload"] == {"n": 1}
    assert shown["attempts"] == []
    assert (count["name"], count["state"], count["number"]) == ("cli.echo", "PENDING", 1)


def test_a_task_is_created_with_several_limit_keys(shell: Shell) -> None:
    keys = ("--limit-key", "bank:acme", "--limit-key", "tenant:7", "--weight", "1500")
    created = shell("create", "cli.echo", *keys, "--delay", "1h")
    task = shell.json("show", created.stdout.strip())["task"]
    assert (task["limit_key"], task["more_limit_keys"]) == ("bank:acme", ["tenant:7"])
    assert task["weight"] == 1500


def test_a_queue_is_paused_shown_and_resumed(shell: Shell) -> None:
    shell("create", "t", "--queue", "mail")

    paused = shell("pause", "mail", "--why", "provider down"), shell("pause", "mail")
    (count,) = shell.json("stats")
    stats = shell("stats")
    resumed = shell("resume", "mail"), shell("resume", "mail")

    assert [done.stdout for done in paused] == [
        "Queue mail is paused. Running tasks go on.\n",
        "Nothing was changed: it is paused. Resume it first.\n",
    ]
    assert {done.stderr for done in paused} == {"No live worker serves the queue mail.\n"}
    assert count["paused"] is True
    assert re.search(r"^queue mail is paused since 20.*Z: provider down$", stats.stdout, re.M)
    assert [done.stdout for done in resumed] == [
        "Queue mail is not paused any more.\n",
        "Nothing was changed: it is not paused.\n",
    ]
    assert "paused since" not in shell("stats").stdout


def test_who_pauses_a_queue_that_nobody_serves_hears_which_are(
    shell: Shell, engine: Engine
) -> None:
    with engine.begin() as connection:
        queues = ["default", "mail"]
        heartbeats.write_heartbeat(connection, owner="w", node="n", queues=queues, handlers=["t"])
    known, unknown = shell("pause", "mail"), shell("pause", "nosuchqueue")
    told = shell.json("pause", "nosuchqueue")
    assert [end.returncode for end in (known, unknown)] == [0, 0]
    assert (known.stderr, unknown.stderr) == (
        "",
        "No live worker serves the queue nosuchqueue. Those that are served: default, mail.\n",
    )
    assert told == {"queue": "nosuchqueue", "paused": True, "changed": False, "served": False}


def test_a_single_queue_cannot_be_resumed_while_all_are_paused(shell: Shell) -> None:
    assert shell("pause", "--all").returncode == 0
    assert "every queue is paused since" in shell("stats").stdout
    resumed = shell("resume", "mail")
    assert (resumed.returncode, resumed.stdout) == (1, "")
    assert "tasks-app resume --all" in resumed.stderr
    assert shell("resume", "--all").stdout == "Every queue is not paused any more.\n"


def test_stacks_are_those_of_the_children_that_were_asked(
    shell: Shell, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "ANSWER_PATIENCE_S", -1.0)
    nobody = shell("stacks", "--worker", "n")
    assert (nobody.returncode, nobody.stderr) == (1, "Nobody was asked: no such worker is alive.\n")
    with engine.begin() as connection:
        for owner, node in (("a", "n"), ("b", "n"), ("c", "other")):
            heartbeats.write_heartbeat(
                connection, owner=owner, node=node, queues=["mail"], handlers=["t"]
            )
    asks = heartbeats.ask_stacks

    def answered(connection: Connection, worker: str) -> list[str]:
        owners = asks(connection, worker)
        heartbeats.write_stacks(connection, "a", "thread MainThread\n\x1b[31m")
        return owners

    monkeypatch.setattr(heartbeats, "ask_stacks", answered)
    told = shell("stacks", "--worker", "n", "--why", "it hangs")
    assert told.returncode == 1
    assert told.stdout == "a\nthread MainThread\n\\x1b[31m\n\nb\nIt has not answered.\n\n"
    assert shell("stacks", "--worker", "a").returncode == 0
    assert [each["owner"] for each in shell.json("stacks", "--worker", "n")] == ["a", "b"]
    assert shell.json("audit")[-1]["what"] == {"why": "it hangs", "worker": "n"}


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--max-tasks", "0", "0 is not in the range x>=1"),
        ("--max-memory", "512", "'512' is no amount of memory. Write it as 512MB or 2GB."),
        ("--max-memory", "-1MB", "'-1MB' is no amount of memory."),
        ("--max-memory", "0MB", "'0MB' is no amount of memory."),
    ],
)
def test_limits_of_processes_that_make_no_sense_are_refused(
    shell: Shell, option: str, value: str, words: str
) -> None:
    done = shell("work", option, value)
    assert done.returncode == 2
    assert words in done.stderr


AWAY = {"TASKS_APP_DATABASE_URL": "postgresql+psycopg://u:hunter2@127.0.0.1:1/x"}
REFUSED = " does not answer: Connection refused. Check TASKS_APP_DATABASE_URL "


@pytest.mark.parametrize(
    ("environment", "typed", "status", "words"),
    [
        (AWAY, "list", 3, REFUSED),
        (AWAY, "metrics --once", 3, "tasks_app_up 0"),
        ({}, "list", 2, "tasks-app up -d"),
        ({"TASKS_APP_LEASE": "hunter2"}, "list", 2, "TASKS_APP_LEASE is wrong"),
        ({**AWAY, "TASKS_APP_IMPORTS": "no.such.module"}, "work --drain", 2, "no.such.module"),
    ],
    ids=["away", "away for metrics", "no database", "wrong setting", "no module"],
)
def test_an_environment_in_which_nothing_runs_is_named_without_its_secrets(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    typed: str,
    status: int,
    words: str,
) -> None:
    done = Shell(monkeypatch, tmp_path, **environment)(*typed.split())
    assert done.returncode == status
    assert words in done.stdout + done.stderr
    assert not re.search("hunter2|Traceback", done.stdout + done.stderr)


@pytest.mark.parametrize("typed", ["work --drain", "create cli.t"])
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("\ndef send(:\n", "cli_broken.py:2 (SyntaxError: invalid syntax"),
        ("import json\n\njson.loads('')\n", "cli_broken.py:3 (JSONDecodeError: Expecting value"),
    ],
    ids=["syntax", "exception"],
)
def test_a_module_of_handlers_that_breaks_is_told_by_its_place(
    shell_with: ShellWith, tmp_path: Path, code: str, words: str, typed: str
) -> None:
    done = shell_with("cli_broken", code)(*typed.split())
    assert done.returncode == 1
    assert done.stderr.startswith(f"A module of TASKS_APP_IMPORTS breaks at {tmp_path}/{words}")
    assert done.stderr.endswith(". Fix it: no worker of these settings starts.\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.test_all
def test_an_unmigrated_database_names_the_command(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(monkeypatch, tmp_path, TASKS_APP_DATABASE_URL=databases.create("unmigrated"))
    listed, checked = shell("list"), shell("migrate", "--check")
    migrated = shell("migrate")
    again, checked_again = shell("migrate"), shell("migrate", "--check")
    assert (listed.returncode, checked.returncode) == (1, 1)
    assert "tasks-app migrate" in listed.stderr
    assert "tasks-app migrate" in checked.stderr
    assert f"from nothing to {newest()}; 15 partitions" in migrated.stdout
    assert "up to date" in again.stdout
    assert checked_again.returncode == 0


def test_the_sql_for_a_dba_creates_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Shell(monkeypatch, tmp_path)("migrate", "--sql")
    assert done.returncode == 0
    assert "CREATE TABLE task_pending" in done.stdout


def test_cancel_and_requeue_by_hand(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        waiting = pending_task(connection, biz_key="order:7")
        running = claimed_task(connection, biz_key="order:8")

    cancelled = shell("cancel", str(waiting), str(running.task_id))
    requeued = shell("requeue", str(waiting))
    by_key = shell("cancel", "--biz-key", "order:7")

    assert cancelled.stdout.splitlines() == [
        f"{waiting}  cancelled",
        f"{running.task_id}  requested",
    ]
    assert requeued.stdout.strip() == f"{waiting}  requeued"
    assert "1 cancelled\n" in by_key.stdout
    with engine.connect() as connection:
        assert pool_of_task(connection, waiting) == "completed CANCELLED"


def test_a_kill_is_for_tasks_that_are_named(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        running = claimed_task(connection, biz_key="order:8").task_id
    done = shell("cancel", str(running), "--kill-after", "90s", "--why", "it hangs")
    assert done.stdout == f"{running}  requested\n"
    with engine.connect() as connection:
        (line,) = audit.find(connection)
        assert line.what == {"kill_after": "90s", "why": "it hangs"}
    assert "give ids alone" in shell("cancel", "--biz-key", "order:8", "--kill-after", "1s").stderr
    assert "'soon', which is not a" in shell("cancel", str(running), "--kill-after", "soon").stderr


def test_who_requeues_what_had_succeeded_hears_so(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        done, lost = finished(connection), failed(connection)
    requeued = shell("requeue", str(done), str(lost))
    assert requeued.stdout.splitlines() == [
        f"{done}  requeued (it had SUCCEEDED, and runs again)",
        f"{lost}  requeued",
    ]


def test_an_id_that_is_given_twice_is_one(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        task_id = pending_task(connection)
    ends = [shell(verb, str(task_id), str(task_id)) for verb in ("cancel", "requeue")]
    assert [(end.returncode, end.stdout) for end in ends] == [
        (0, f"{task_id}  cancelled\n"),
        (0, f"{task_id}  requeued\n"),
    ]


@pytest.mark.test_all
def test_work_drains_the_pool_without_a_broker_and_survives_poison(
    shell: Shell, engine: Engine
) -> None:
    ids = [int(shell("create", "cli.echo", f'{{"n": {n}}}').stdout) for n in range(3)]
    poison = int(shell("create", "cli.poison").stdout)

    done = shell.process("work", "--drain")  # in one thread: of two that ran nobody is charged

    assert done.returncode == 0, done.stderr[-6000:]
    with engine.connect() as connection:
        assert [pool_of_task(connection, i) for i in ids] == ["completed SUCCEEDED"] * 3
        assert pool_of_task(connection, poison) == "error FAILED"
    result = shell.json("show", str(ids[0]))["task"]["result"]
    assert result["frozen"] > 10_000  # no collection walks what was there before the first task
    shown = shell.json("show", str(poison))
    assert shown["task"]["error"].startswith("process died")
    assert [a["event"] for a in shown["attempts"]] == ["retry", "retry", "fail"]


@pytest.mark.test_all
def test_work_without_handlers_says_where_they_come_from(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(monkeypatch, tmp_path, TASKS_APP_DATABASE_URL=database_url)
    done = shell.process("work", "--drain")
    assert done.returncode == 2
    assert "TASKS_APP_IMPORTS" in done.stderr


def test_scan_publishes_nothing_where_no_worker_lives(shell: Shell) -> None:
    shell("create", "cli.echo")
    done = shell("scan")
    assert done.returncode == 0
    assert "0 ids published" in done.stdout


@pytest.mark.test_all
@pytest.mark.parametrize("folder", [(), ("--folder", "my servers")], ids=["usual", "named"])
def test_up_urls_down_in_a_folder(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, folder: tuple[str, ...]
) -> None:
    shell = Shell(monkeypatch, open_folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    try:
        up = shell("up", "-d", *folder)
        urls = shell.json("urls", *folder)
        advice = up.stdout.splitlines()[-1].removeprefix("Next: ")
        migrated = run_program(advice, shell=True)
        second = shell("up", "-d", *folder)
    finally:
        down = shell("down", *folder)
    after = shell("urls", *folder)

    assert up.returncode == 0
    assert "PostgreSQL 18" in up.stdout
    assert set(urls) == {"TASKS_APP_DATABASE_URL", "TASKS_APP_BROKER_URL"}
    assert (migrated.returncode, newest() in migrated.stdout) == (0, True), migrated.stderr
    assert second.returncode == 2
    assert (down.returncode, after.returncode) == (0, 1)
    assert ("--folder 'my servers'" in after.stderr) == bool(folder)


def test_explain_says_what_is_the_case_and_what_to_do(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        task_id = pending_task(connection, "cli.echo", delay="1h")
    shell("pause", "--all", "--reason", "moving")

    done = shell("explain", str(task_id))
    said = shell.json("explain", str(task_id))
    nobody = shell("explain", "999999999")

    assert (done.returncode, nobody.returncode) == (0, 1)
    lines = done.stdout.splitlines()
    assert re.match(r"It is due in 59 min \(.*Z\): it was created with", lines[0])
    assert lines[1] == "Nothing to do: it starts then."
    assert re.search(r"^Also: Every queue was paused .*Z\): moving\.$", done.stdout, re.MULTILINE)
    assert "To resume: tasks-app resume --all" in lines
    assert re.search(r"^due_at +\d{4}-.*Z  in 59 min$", done.stdout, re.MULTILINE)
    assert re.search(r"^children +0 serve the queue, 0 of them know the name$", done.stdout, re.M)
    assert re.search(r"^busy +0 of them, at their last heartbeat$", done.stdout, re.MULTILINE)
    assert [f["subject"] for f in said["findings"]] == ["not due", "paused", "no worker"]
    assert said["facts"]["name"] == "cli.echo"
    assert "There is no task 999999999 in any pool." in nobody.stdout


def test_prune_tells_what_would_go_and_lets_it_go(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        old_day(connection)
        finished(connection)
    try:
        told = shell("prune", "--dry-run")
        listed = shell.json("prune", "--dry-run")
        done = shell("prune")
        again = shell("prune", "--dry-run")
    finally:
        drop_old_days(engine)

    assert [each.returncode for each in (told, done, again)] == [0, 0, 0]
    assert re.search(rf"^completed +{NAME} +1 +\d+ +dropped +30d", told.stdout, re.MULTILINE)
    assert [(d["what"], d["rows"]) for d in listed] == [(NAME, 1)]
    assert f"{NAME} dropped" in done.stdout
    assert "1 day dropped, 0 completed and 0 failed tasks deleted" in done.stdout
    assert again.stdout == "Nothing is too old.\n"


def test_prune_says_what_had_to_stay(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        old_day(connection)
    try:
        with engine.begin() as connection:
            connection.execute(text(f"SELECT count(*) FROM {NAME}"))
            done = shell("prune")
    finally:
        drop_old_days(engine)
    assert done.returncode == 1
    assert f"{NAME} is in use and stays" in done.stderr


def test_a_list_of_nothing_says_so(shell: Shell) -> None:
    nouns = ("schedules", "batch", "queues", "limits", "breakers")
    lists = (("audit",), ("stats",), *((noun, "list") for noun in nouns))
    assert [shell(*command).stdout for command in lists] == ["There are none.\n"] * len(lists)


def test_in_django_what_to_run_is_typed_as_there(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = (("batch", "show", "7"), ("limits", "remove", "key", "x"))
    for command in commands:
        with pytest.raises(SystemExit):
            group(args=command, prog_name="manage.py tasks_app")

    told = capsys.readouterr().err.splitlines()
    assert [line.partition(" Run: ")[2] for line in told] == [
        "python manage.py tasks_app batch list",
        "python manage.py tasks_app limits list",
    ]
    context = click.Context(group, info_name="manage.py tasks_app")
    with context:
        there = output.with_program_name("Name its module in the TASKS_APP_IMPORTS of a worker.")
    assert there == "Put it into the tasks.py of an installed app."
    assert "Run: tasks-app batch list" in shell("batch", "show", "7").stderr


def test_a_misspelt_name_is_created_with_a_hint(shell: Shell) -> None:
    misspelt, known, other = (shell("create", name) for name in ("cli.ecko", "cli.echo", "mail"))
    assert misspelt.returncode == 0
    assert misspelt.stderr == (
        "TASKS_APP_IMPORTS has no handler cli.ecko. Did you mean cli.echo? Then cancel this task.\n"
    )
    assert known.stderr == ""
    assert other.stderr == (
        "TASKS_APP_IMPORTS has no handler mail, so its queue is default."
        " To choose another: --queue\n"
    )


LOOKS = """
list show explain stats audit report doctor config healthz metrics alerts.list alerts.watch
errors.show limits.list queues.list queues.show breakers.list encryption.status schedules.list
schedules.preview schedules.show batch.list batch.partitions batch.plan batch.show batch.validate
locks.list locks.report locks.waits groups.list groups.show flows.list flows.show events.list
notify.status db-scheduler.status urls
grants encryption.new-key
"""
NOT_AUDITED = """
demo up down migrate maintain scan work dashboard create rest errors.fill batch.start
batch.rebalance notify.install notify.remove db-scheduler.install db-scheduler.remove
"""


def test_every_verb_that_the_audit_tells_of_takes_why() -> None:
    """pause alone had a reason, under another name."""
    lacks = {
        ".".join(words)
        for words, command in commands()
        if not isinstance(command, click.Group) and not command.hidden
        if "--why" not in {option for each in command.params for option in each.opts}
    }
    assert lacks == {*LOOKS.split(), *NOT_AUDITED.split()}


def test_why_is_kept_beside_what_was_done(shell: Shell) -> None:
    shell("limits", "set", "queue", "mail", "--most", "3", "--why", "it is slow")
    shell("limits", "drop", "queue", "mail", "--why", "it is fast")  # as it was called before
    shell("pause", "mail", "--reason", "away")
    shell("resume", "mail", "--why", "back")
    shell("queues", "set", "mail", "--timeout", "5s", "--why", "slow")
    assert shell("queues", "reset", "mail").stdout == "Its settings are removed.\n"
    told = [each["what"] for each in shell.json("audit")]
    assert [what.get("why", what.get("reason")) for what in told][::-1] == [
        *("it is slow", "it is fast", "away", "back", "slow", None)
    ]
    assert shell("limits", "list").stdout == "There are none.\n"


VERBS = [
    (("run-now",), "due now"),
    (("reschedule", "--in", "2h"), "rescheduled"),
    (("reschedule", "--at", "2031-01-31T09:00+01:00"), "rescheduled"),
    (("reprioritise", "--to", "0"), "reprioritised"),
    (("move", "--to", "slow"), "moved"),
    (("hold",), "held"),
    (("disable",), "disabled"),
]
each_verb = pytest.mark.parametrize(
    ("words", "answer"), VERBS, ids=[words[0] for words, _ in VERBS]
)


@each_verb
def test_ids_are_answered_one_by_one(
    shell: Shell, engine: Engine, words: tuple[str, ...], answer: str
) -> None:
    (task_id,) = make(engine, 1, delay="1h")
    with engine.begin() as connection:
        running = claimed_task(connection).task_id
    done = shell(*words, str(task_id), "--why", "an outage")
    refused = shell(*words, str(running), "1000000000")
    assert (done.returncode, done.stdout) == (0, f"{task_id}  {answer}\n")
    assert refused.returncode == 1
    assert refused.stdout == f"{running}  running, left as it is\n1000000000  not found\n"
    listed = shell("audit", "--wide").stdout
    assert "why=an outage" in listed
    assert f"ids=[{task_id}]" in listed


@each_verb
def test_a_selection_is_previewed_then_done_in_stages(
    shell: Shell, engine: Engine, words: tuple[str, ...], answer: str
) -> None:
    ids = make(engine, 3, delay="1h")
    dry = shell(*words, "--name", "t", "--dry-run")
    first = shell(*words, "--name", "t", "--first", "1")
    rest = shell("rest", token_of(first.stdout))
    assert "3 tasks are selected. Nothing was changed." in dry.stdout
    assert f"1 {answer}\nids: {ids[0]}\n" in first.stdout
    assert rest.stdout == f"2 {answer}\nids: {ids[1]} {ids[2]}\n"
    assert {done.returncode for done in (dry, first, rest)} == {0}


def test_what_was_so_already_is_said_and_ends_with_1(shell: Shell, engine: Engine) -> None:
    (task_id,) = make(engine, 1)
    done = shell("release", str(task_id))
    assert (done.returncode, done.stdout) == (1, f"{task_id}  unchanged\n")


def test_a_rate_makes_a_bulk_of_ids_too(shell: Shell, engine: Engine) -> None:
    ids = make(engine, 2, delay="1h")
    done = shell("run-now", *map(str, ids), "--rate", "1/1s")
    assert f"2 brought forward\nids: {ids[0]} {ids[1]}\n" in done.stdout
    assert done.returncode == 0
    again = shell("run-now", str(ids[0]), "1000000000", "--rate", "1/1s")
    assert again.returncode == 1
    assert again.stderr.endswith(f"do not fit: {ids[0]} 1000000000\n")


def test_lists_say_held_and_name_no_date(
    shell: Shell, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, other = make(engine, 2, delay="1h")
    shell("hold", str(held), "--why", "the bank asks")
    monkeypatch.setenv("COLUMNS", "80")

    listed, only = shell("list").stdout, shell("list", "--held").stdout
    shown, said = shell("show", str(held)).stdout, shell("explain", str(held)).stdout
    stored = shell.json("show", str(held))["task"]

    assert re.search(rf"^ *{held} +PENDING +held ", listed, re.M)
    assert re.search(rf"^ *{other} +PENDING +due in ", listed, re.M)
    assert re.search(rf"^ *{held} ", only, re.M)
    assert not re.search(rf"^ *{other} ", only, re.M)
    assert re.search(r"^held +True$", shown, re.M)
    assert "the bank asks" in said
    assert f"tasks-app release {held}" in said
    assert stored["held"] is True
    everything = f"{listed}{only}{shown}{said}{stored}"
    assert not re.search(r"(?<![\w-])9[5-9]\d\d-\d\d-", everything)  # a key may hold such digits
    assert max(map(len, f"{listed}\n{only}".splitlines())) <= 80


def test_lists_say_disabled(shell: Shell, engine: Engine) -> None:
    (task_id,) = make(engine, 1, delay="1h")
    shell("disable", str(task_id))
    assert re.search(rf"^{task_id} +PENDING +disabled ", shell("list").stdout, re.M)
    assert " enabled " in shell("list", "--wide").stdout
