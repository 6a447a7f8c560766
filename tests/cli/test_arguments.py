"""Arguments and addresses that are wrong."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import click
import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from tasks_app import set_limit
from tasks_app.broker.checks import check_database
from tasks_app.cli.group import COMMANDS, SECTIONS, group
from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.domain.errors import ConfigurationError
from tests.cli.shell import Shell, commands
from tests.environment import run_program
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
    "flows list",
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


SECRET = "s3cret"
BIN = Path(sys.executable).parent
FORMS = [
    (f"sqlite:///{SECRET}.db", "sqlite is not PostgreSQL"),
    ("sqlite:", "sqlite is not PostgreSQL"),
    (f"mysql://me:{SECRET}@h/x", "mysql is not PostgreSQL"),
    ("mysql:", "mysql is not PostgreSQL"),
    (f"postgresql+asyncpg://me:{SECRET}@h/x", "must be psycopg 3, not asyncpg; begin"),
    (
        f"postgresql+psycopg2://me:{SECRET}@h/x",
        "psycopg 3, not psycopg2; begin with postgresql+psycopg://",
    ),
    (f"postgresql+{SECRET}://me@h/x", "must be psycopg 3; begin with postgresql+psycopg://"),
    ("not a url", "use a URL such as postgresql+psycopg://"),
    (f"nonsense:{SECRET}", "use a URL such as postgresql+psycopg://"),
    (f"postgres://someone@127.0.0.1:{SECRET}", "use a URL such as postgresql+psycopg://"),
    (f"{SECRET}://me@h/x", "use a URL such as postgresql+psycopg://"),
]


@pytest.mark.parametrize(("url", "said"), FORMS)
def test_a_url_of_something_else_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", url)
    with pytest.raises(ConfigurationError) as refusal:
        load_settings()
    assert str(refusal.value).startswith("TASKS_APP_DATABASE_URL is wrong: ")
    assert said in str(refusal.value)
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize(
    "scheme",
    ["postgres", "postgresql", "postgresql+psycopg", "postgresql+psycopg_async", "POSTGRES"],
)
def test_any_name_of_postgresql_will_do(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """As ``DATABASE_URL`` of many a host has it."""
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", f"{scheme}://me:pw@h:1/x?sslmode=require")
    assert load_settings().database == "postgresql+psycopg://me:pw@h:1/x?sslmode=require"


@pytest.fixture
def causes(database_url: str) -> dict[str, tuple[str, str, int]]:
    """Each way not to get in: the URL, what is said, the exit code."""
    url = make_url(database_url)

    def of(**parts: object) -> str:
        return url.set(**parts).render_as_string(hide_password=False)

    return {
        "role": (of(username="nobody"), 'refuses role "nobody": password authentication', 2),
        "password": (of(password=SECRET), "password authentication failed", 2),
        "database": (of(database="nothing"), 'has no database "nothing"', 2),
        "host": (of(host="no-host.invalid"), "is on host no-host.invalid, which has no address", 3),
        "port": (of(port=1), "at 127.0.0.1:1 does not answer: Connection refused", 3),
        "number": (of(port=99999), 'cannot be reached: invalid port number: "99999"', 2),
        "tls": (
            of(query={"sslmode": "require"}),
            "does not support TLS, but sslmode requires it",
            2,
        ),
        "option": (of(query={"foo": "bar"}), "cannot be reached: invalid ", 2),
    }


@pytest.fixture
def cause(request: pytest.FixtureRequest) -> str:
    """Its name; some need a server that asks for passwords and speaks no TLS."""
    name: str = request.param
    if name in {"role", "password", "tls"}:
        request.getfixturevalue("postgres")
    return name


@pytest.mark.parametrize(
    "cause",
    ["role", "password", "database", "host", "port", "number", "tls", "option"],
    indirect=True,
)
def test_who_does_not_get_in_reads_why(
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    causes: dict[str, tuple[str, str, int]],
    cause: str,
) -> None:
    url, said, status = causes[cause]
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", url)
    password = make_url(url).password or SECRET

    done = shell("stats")
    doctor = shell("doctor")
    health = shell("healthz", "--role", "db")

    assert (done.returncode, doctor.returncode) == (status, 3 if status == 3 else 1)
    assert done.stderr.startswith("The database ")
    assert said in done.stderr
    assert said in doctor.stdout
    assert (health.returncode, said in health.stdout) == (1, True)
    for each in (done, doctor, health):
        assert password not in each.stdout + each.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_database_that_answers_is_healthy(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", database_url)
    health = shell("healthz", "--role", "db")
    assert (health.returncode, health.stdout.endswith(" answers\n")) == (0, True)


@pytest.mark.parametrize(
    "cause", ["password", "database", "host", "port", "tls", "option"], indirect=True
)
def test_worker_and_beat_end_with_the_same_sentence_and_code(
    causes: dict[str, tuple[str, str, int]], cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url, said, status = causes[cause]
    with pytest.raises(SystemExit) as end:
        check_database(Settings(database_url=url))
    assert (end.value.code, said in capsys.readouterr().err) == (status, True)


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TASKS_APP_DATABASE_URL", f"mysql://me:{SECRET}@h/x", "mysql is not PostgreSQL"),
        ("TASKS_APP_BROKER_URL", f"foo://me:{SECRET}@h/x", "names the transport foo, which Celery"),
        ("TASKS_APP_BROKER_URL", "not a url", "use a URL such as redis://"),
        ("TASKS_APP_BROKER_URL", f"redis://:{SECRET}@h/abc", "a database of Redis by more than a"),
        ("CELERY_BROKER_URL", f"foo://me:{SECRET}@h/x", "The URL in CELERY_BROKER_URL names"),
    ],
)
def test_a_wrong_url_ends_a_command_of_celery_with_2(
    tmp_path: Path, variable: str, value: str, said: str
) -> None:
    done = celery(tmp_path, "worker", **{variable: value})
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "transport", [f"foo://me:{SECRET}@h/x", f"redis://h;kafka://me:{SECRET}@h"]
)
def test_doctor_names_a_transport_that_is_not_here(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, database_url: str, transport: str
) -> None:
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", database_url)
    monkeypatch.setenv("TASKS_APP_BROKER_URL", transport)
    doctor = shell("doctor")
    assert doctor.returncode == 1
    assert "names the transport" in doctor.stdout
    assert SECRET not in doctor.stdout + doctor.stderr


@pytest.mark.test_all
def test_a_statement_that_timed_out_is_not_called_an_absent_database(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", database_url)
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("LOCK TABLE task_pending IN ACCESS EXCLUSIVE MODE"))
        done = shell("stats")
    engine.dispose()
    assert done.returncode == 3
    assert "LockNotAvailable: canceling statement due to lock timeout" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def celery(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Celery that ends by itself."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TASKS_APP_", "CELERY_"))}
    urls = {
        "TASKS_APP_DATABASE_URL": "postgresql+psycopg://me@127.0.0.1:1/x",
        "TASKS_APP_BROKER_URL": "memory://",
    }
    return run_program(
        [sys.executable, "-W", "ignore", BIN / "celery", "-A", "tasks_app", *words],
        cwd=folder,
        env={**kept, **urls, **environment},
        timeout=110,
    )
