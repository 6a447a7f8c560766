"""Settings: rules of alerts, masking, retention, names, addresses."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tasks_app import Settings
from tasks_app.domain.alerts import RULE_EXAMPLES, RuleKind, UserRule, parse_rules, read_mail
from tasks_app.domain.config.retention import Keep, format_age, parse_keep
from tasks_app.domain.config.setting_sources import effective_settings, masked
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.config.unreachable import why_unreachable
from tasks_app.domain.config.urls import schema_name
from tasks_app.domain.errors import ConfigurationError

URL = "smtps://bob%40x:p%2Fw@mail.example/?from=a@example.org&to=b@example.org,c@example.org"


def test_each_kind_is_read() -> None:
    assert parse_rules(";".join(RULE_EXAMPLES.values())) == (
        UserRule(RuleKind.FAILED, None, "mail", 10, timedelta(minutes=5)),
        UserRule(RuleKind.RATIO, "mail.send", None, 0.2, timedelta(minutes=15)),
        UserRule(RuleKind.AGE, None, "pay", 0, timedelta(minutes=2)),
        UserRule(RuleKind.PENDING, None, "bulk", 10_000, timedelta(0)),
        UserRule(RuleKind.SILENCE, "report.daily", None, 0, timedelta(hours=25)),
    )


def test_lines_and_empty_parts_are_fine() -> None:
    assert len(parse_rules("\n age queue=a > 2m ;\n\n pending name=b>5;")) == 2
    assert parse_rules("") == ()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("hunger queue=a > 1", "must begin with one of failed, ratio, age, pending, silence"),
        ("failed queue=a > 1", "write it as: failed queue=mail > 10 in 5m"),
        ("failed queue=a > many in 5m", "write it as: failed queue=mail > 10 in 5m"),
        ("failed > 1 in 5m", "write it as: failed"),
        ("ratio queue=a > 20 in 5m", "write it as: ratio name=mail.send > 20% in 15m"),
        ("age name=a > 5m", "write it as: age queue=pay > 2m"),
        ("age queue=a > soon", "write it as: age queue=pay > 2m"),
        ("age queue=a > 5m in 5m", "write it as: age queue=pay > 2m"),
        ("silence name=a > 3s", "names a time outside 1m .. 30d"),
        ("failed name=a > 3 in 40d", "names a time outside 1m .. 30d"),
        ("pending queue=a > 1000000", "is above 999999"),
        ("age queue=a > 5m; age queue=a > 9m", "there are two rules of age queue=a"),
    ],
)
def test_a_wrong_rule_is_a_sentence(wrong: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKS_APP_ALERTS", wrong)
    with pytest.raises(ConfigurationError) as refused:
        load_settings()
    assert str(refused.value).startswith("TASKS_APP_ALERTS is wrong: ")
    assert said in str(refused.value)


def test_a_mail_server_is_read() -> None:
    server = read_mail(URL)
    assert (server.host, server.port, server.tls) == ("mail.example", 465, True)
    assert (server.user, server.password, server.sender) == ("bob@x", "p/w", "a@example.org")
    assert server.receivers == ("b@example.org", "c@example.org")
    assert server.shown == "smtps://mail.example:465"
    assert "p/w" not in repr(server)
    assert read_mail("smtp://m/?from=a@b&to=c@d").port == 587


@pytest.mark.parametrize(
    "wrong",
    [
        *("mail.example", "http://mail.example/?from=a@b&to=c@d", "smtp://?from=a@b&to=c@d"),
        *("smtp://secret@m/?from=a@b&to=c@d", "smtp://u:secret@m/?from=a@b"),
        *("smtp://u:secret@m/?to=a@b", "smtp://u:secret@m/?from=a&to=c@d"),
        "smtp://u:secret@m:port/?from=a@b&to=c@d",
        "smtp://u:secret@m/?from=a@b&to=c@d%0aBcc:e@f",
    ],
)
def test_a_wrong_mail_server_is_not_repeated(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKS_APP_ALERT_MAIL", wrong)
    with pytest.raises(ConfigurationError) as refused:
        load_settings()
    assert "TASKS_APP_ALERT_MAIL is wrong: " in str(refused.value)
    assert "secret" not in str(refused.value)


def test_the_password_is_in_no_text_of_the_settings() -> None:
    assert "p%2Fw" not in repr(Settings(alert_mail=URL))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("redis://:hunter2@host:6379/0", "redis://:***@host:6379/0"),
        ("postgresql+psycopg://me:hunter2@host/db", "postgresql+psycopg://me:***@host/db"),
        (
            "postgresql://me@host/db?password=hunter2&x=1",
            "postgresql://me@host/db?password=***&x=1",
        ),
        ("amqp://a:hunter2@one//;amqp://b:hunter2@two//", "amqp://a:***@one//;amqp://b:***@two//"),
        ("redis://:hun@ter2@host", "redis://:***@host"),
        ("sentinel://host:26379/0", "sentinel://host:26379/0"),
        (["redis://:hunter2@a"], ["redis://:***@a"]),
        ({"sentinel_kwargs": {"password": "hunter2"}}, {"sentinel_kwargs": {"password": "***"}}),
        ({"password": None, "size": 3}, {"password": None, "size": 3}),
        (7, 7),
    ],
)
def test_secrets_are_masked_wherever_they_lie(value: object, shown: object) -> None:
    assert masked(value) == shown
    assert "hunter2" not in str(masked(value))


def test_of_where_alerts_go_only_the_server_is_shown() -> None:
    mail = "smtps://bob:hunter2@mail.example/?from=a@example.org&to=b@example.org"
    settings = Settings(alert_webhook="https://hooks.example/hunter2?x=hunter2", alert_mail=mail)
    values = {each.name: each.value for each in effective_settings(settings)}
    assert values["TASKS_APP_ALERT_WEBHOOK"] == "https://hooks.example"
    assert values["TASKS_APP_ALERT_MAIL"] == "smtps://mail.example:465"


def test_a_setting_that_is_a_secret_by_its_name_is_masked() -> None:
    assert masked("hunter2", "security_key_password") == "***"
    assert masked("json", "task_serializer") == "json"


@pytest.mark.parametrize(
    "url",
    [
        *("postgresql:/me:hunter2@host/db", "me:hunter2@host/db"),
        *("postgresql+psycopg//me:hunter2@host/db", "host=h password='hunter2 x'"),
        *("redis://:hunter2/x@host", "redis://:hunter2#x@host", "redis://:hunter2"),
    ],
)
def test_of_what_is_no_url_nothing_is_shown(url: str) -> None:
    assert "hunter2" not in masked(url, "broker_url")


DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("30d", Keep(30 * DAY)),
        ("forever", Keep(None)),
        ("30d, mail.send=12h", Keep(30 * DAY, {"mail.send": DAY / 2})),
        ("7d,a=forever,b=1d", Keep(7 * DAY, {"a": None, "b": DAY})),
    ],
)
def test_what_is_written_is_read(text: str, keep: Keep) -> None:
    assert parse_keep(text) == keep


@pytest.mark.parametrize("text", ["", "0s", "30 days", "a=1d", "30d,a", "30d,=1d", "30d,a b=1d"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_keep(text)


def test_the_longest_age_is_that_of_the_partition() -> None:
    assert parse_keep("30d,a=90d,b=1d").longest == 90 * DAY
    assert parse_keep("30d,a=forever,b=1d").longest is None
    assert parse_keep("forever").longest is None


def test_names_with_less_than_the_longest_go_early_and_no_others() -> None:
    assert parse_keep("30d,a=90d,b=1d").early == {"b": DAY}
    assert parse_keep("30d,a=30d").early == {}
    assert parse_keep("forever,b=1d").early == {"b": DAY}


def test_the_shortest_age_is_the_first_that_matters() -> None:
    assert parse_keep("forever,b=1d").shortest == DAY
    assert parse_keep("forever").shortest is None


def test_ages_are_written_as_they_are_read() -> None:
    assert (format_age(None), format_age(30 * DAY)) == ("forever", "30d")


def test_by_default_errors_stay_and_completed_ones_go_after_a_month() -> None:
    settings = Settings()
    assert settings.completed == Keep(30 * DAY)
    assert settings.errors == Keep(None)


def test_a_setting_that_cannot_be_read_names_its_variable(monkeypatch) -> None:
    monkeypatch.setenv("TASKS_APP_KEEP_ERRORS", "a while")
    with pytest.raises(ConfigurationError, match="TASKS_APP_KEEP_ERRORS is wrong: use ages such"):
        load_settings()


@pytest.mark.parametrize(
    "name", ["My-Schema", 'quo"te', "%s", "123", "pg_foo", "information_schema", "a\n"]
)
def test_a_wrong_name_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TASKS_APP_SCHEMA", name)
    with pytest.raises(ConfigurationError, match=r"^TASKS_APP_SCHEMA is wrong: "):
        schema_name()


@pytest.mark.parametrize("name", ["jobs", "_x1", "pgx", "information_schema2"])
def test_a_plain_one_is_taken(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TASKS_APP_SCHEMA", name)
    assert schema_name() == name


@pytest.mark.test_all
@pytest.mark.parametrize(
    "words",
    [
        ("-m", "tasks_app", "stats"),
        ("-m", "tasks_app", "doctor"),
        ("-m", "celery", "-A", "tasks_app", "worker"),
    ],
)
def test_a_command_ends_with_one_sentence_and_2(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *words],
        cwd=tmp_path,
        env=os.environ | {"TASKS_APP_SCHEMA": "pg_foo"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("TASKS_APP_SCHEMA is wrong: ")
    assert len(done.stderr.splitlines()) == 1


AT = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '
REFUSED = f"""{AT}Connection refused
\tIs the server running on that host and accepting TCP/IP connections?"""
SOCKET = """connection is bad: connection to server on socket "/tmp/x/.s.PGSQL.5432" failed: \
No such file or directory
\tIs the server running locally?"""
HERE, FATAL, NO = "at 127.0.0.1:5432", "FATAL:  ", "does not exist"
UNKNOWN = "failed to resolve host 'db.invalid': [Errno -2] Name or service not known"
ODD = 'database "a\nERROR \x1b[2J" does not exist'
DISTRUST = "SSL error: certificate verify failed"
CLOSED = "server closed the connection unexpectedly"
GERMAN = "Rolle »shop« existiert nicht"
BOUNCER = "as PgBouncer in transaction mode does"
NO_TLS = 'host "10.0.0.1", user "shop", database "shop"'
MANY = f"""{REFUSED}
Multiple connection attempts failed. All failures were:
- host: 'localhost', port: '5432', hostaddr: '::1': connection failed: role "x" does not exist"""


@pytest.mark.parametrize(
    ("said", "fact", "away"),
    [
        (REFUSED, f"{HERE} does not answer: Connection refused", True),
        (MANY, f"{HERE} does not answer: Connection refused", True),
        (SOCKET, "at /tmp/x/.s.PGSQL.5432 does not answer: No such file or directory", True),
        (UNKNOWN, "is on host db.invalid, which has no address", True),
        (AT + FATAL + ODD, rf'server {HERE} has no database "a\nERROR \x1b[2J"', False),
        (
            f'{AT}{FATAL}password authentication failed for user "shop"',
            f'{HERE} refuses role "shop": password authentication failed',
            False,
        ),
        (f"{AT}fe_sendauth: no password supplied", f"{HERE} asks for a password", False),
        (f'{AT}{FATAL}role "shop" {NO}', f'{HERE} has no role "shop" that may log in', False),
        (f'{AT}{FATAL}database "shop" {NO}', f'server {HERE} has no database "shop"', False),
        (
            f"{AT}{FATAL}no pg_hba.conf entry for {NO_TLS}, no encryption",
            f"{HERE} requires TLS from here ({NO_TLS})",
            False,
        ),
        (
            f"{AT}server does not support SSL, but SSL was required",
            f"{HERE} does not support TLS, but sslmode requires it",
            False,
        ),
        (f"{AT}{DISTRUST}", f"{HERE} cannot be trusted: {DISTRUST}", False),
        (f"{AT}{FATAL}sorry, too many clients already", f"{HERE} has no connection left", True),
        (f"{AT}{FATAL}the database system is starting up", f"{HERE} is starting up", True),
        *(
            (f"{before}{wrong}{behind}", f"cannot be reached: {wrong}", False)
            for before, wrong, behind in (
                ("connection is bad: ", 'invalid port number: "99999"', ""),
                ("", 'invalid connection option "foo"', "\n"),
                ("", 'invalid URI query parameter: "foo"', ""),
            )
        ),
        *(
            (
                f"{AT}{FATAL}unsupported startup parameter{where}: {name}",
                f"{HERE} refuses the startup parameter {name}, {BOUNCER}",
                False,
            )
            for where, name in (("", "options"), (" in options", "jit"))
        ),
        ("connection timeout expired", "does not answer: timeout expired", True),
        # A server that speaks another language, or says what we do not know.
        (f"{AT}{FATAL}{GERMAN}", f"{HERE} refuses: {GERMAN}", True),
        (f"consuming input failed: {CLOSED}", f"does not answer: {CLOSED}", True),
        ("", "does not answer", True),
    ],
)
def test_each_cause_is_said(said: str, fact: str, away: bool) -> None:
    why = why_unreachable(said)
    assert (why.fact, why.away) == (fact, away)
    assert str(why) == f"The database {fact}. {why.advice}"
    assert "\n" not in str(why)
