"""What holds for every command: nothing empty is taken for nothing, and every terminal will do."""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import redirect_stderr, redirect_stdout

import click
import pytest
from sqlalchemy import Engine

from tasks_app import set_limit
from tasks_app.cli.group import COMMANDS, SECTIONS, group
from tests.cli.shell import Shell, commands
from tests.factory import pending_task, pool_of_task

ODD = "Bestellung-é-注文-😀"
PRINTING = (
    "list",
    "list --json",
    "stats",
    "show {id}",
    "explain {id}",
    "limits list",
    "queues list",
    "queues show é",
    "schedules list",
    "locks list",
    "groups list",
    "batch list",
    "breakers list",
    "fair",
    "audit",
    "doctor",
    "report",
    "config",
)


def test_no_line_of_a_list_of_commands_is_cut_at_80_columns() -> None:
    within = [group.get_command(click.Context(group), name) for name in COMMANDS]
    groups = [group, *(each for each in within if isinstance(each, click.Group))]

    lines = "\n".join(each.get_help(click.Context(each, terminal_width=80)) for each in groups)

    assert [line for line in lines.splitlines() if re.match(r"  \w.*\.\.\.$", line)] == []


def test_the_list_of_commands_has_headings_and_names_each_once() -> None:
    lines = group.get_help(click.Context(group)).splitlines()

    assert [line[:-1] for line in lines if re.fullmatch(r"[A-Z].*:", line)] == [
        *("Options", "Run", "Tasks", "Errors", "Queues and limits"),
        *("Schedules", "Batch jobs", "Operate"),
    ]
    listed = [found[1] for line in lines if (found := re.match(r"  ([a-z][a-z-]*)  ", line))]
    assert listed == list(COMMANDS)
    assert sum(map(len, SECTIONS.values())) == len(COMMANDS)


def test_each_option_has_a_help() -> None:
    bare = [
        f"{' '.join(verb)} {option.opts[0]}"
        for verb, command in commands()
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]

    assert bare == []


def run_in(encoding: str, *arguments: str) -> tuple[int, str]:
    """Call a command whose terminal knows no other encoding; return its status and output."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding, write_through=True)
    with redirect_stdout(stream), redirect_stderr(stream):
        try:
            group([*arguments], prog_name="tasks-app")
        except SystemExit as end:
            status = end.code
        except UnicodeEncodeError as error:
            status = str(error)
    assert isinstance(status, int), status
    return status, raw.getvalue().decode(stream.encoding)


@pytest.fixture
def shell(engine: Engine, database_url: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(monkeypatch, tmp_path, TASKS_APP_DATABASE_URL=database_url)


def test_the_value_of_no_option_of_no_command_may_be_empty() -> None:
    tried = 0
    for words, command in commands():
        options = [
            p.opts[0] for p in command.params if isinstance(p, click.Option) and not p.is_flag
        ]
        for option in options:
            for given in ([option, ""], [f"{option}="], [option, " "]):
                if option.startswith("--") or "=" not in given[0]:
                    status, said = run_in("ascii", *words, *given)
                    assert (status, f"The value of {option} is empty." in said) == (2, True), words
                    tried += 1

    assert tried > 200


def test_an_empty_shell_variable_never_widens_what_is_meant(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        task_id = pending_task(connection, queue="mail")

    ends = [
        shell("cancel", str(task_id), "--queue", ""),
        shell("cancel", str(task_id), "--queue="),
        shell("requeue", str(task_id), "--name", ""),
        shell("cancel", ""),
    ]

    assert [(end.returncode, "Traceback" in end.stderr) for end in ends] == [(2, False)] * 4
    assert ends[0].stderr.splitlines()[-1] == (
        "Error: The value of --queue is empty. Leave it out, or give a value."
    )
    with engine.connect() as connection:
        assert pool_of_task(connection, task_id) == "pending PENDING"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_every_command_prints_whatever_the_terminal_knows(
    shell: Shell, engine: Engine, encoding: str
) -> None:
    with engine.begin() as connection:
        task_id = pending_task(connection, biz_key=ODD)
        set_limit(connection, "key", ODD, most=1)
    shell("pause", "é", "--reason", ODD)

    for command in PRINTING:
        status, said = run_in(encoding, *command.format(id=task_id).split())

        assert (status in (0, 1), "Traceback" in said) == (True, False), (command, said)
        if "--json" in command:
            assert json.loads(said)[0]["biz_key"] == ODD
    shown = r"Bestellung-é-\u6ce8\u6587-\U0001f600" if encoding == "latin-1" else ODD
    assert shown in run_in(encoding, "list")[1]


def test_every_help_prints_where_nothing_is_known_but_ascii() -> None:
    for words, _ in commands():
        if words != ("demo",):  # becomes another process
            status, said = run_in("ascii", *words, "--help")
            assert (status, "Usage: tasks-app" in said) == (0, True), words


def test_the_demo_becomes_a_process_that_prints_in_ascii_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[dict[str, str]] = []
    monkeypatch.setattr("os.execve", lambda *call: told.append(call[2]))

    group(["demo", "--once"], standalone_mode=False)

    assert told[0]["PYTHONIOENCODING"] == f"{sys.stdout.encoding}:backslashreplace"


def test_all_commands_were_seen() -> None:
    assert {words[0] for words, _ in commands() if words} == set(COMMANDS)
