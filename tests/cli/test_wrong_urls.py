"""What is wrong with a URL, or with what it leads to: one sentence, an exit code, no password."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from tasks_app.broker.checks import check_database
from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.domain.errors import ConfigurationError
from tests.cli.shell import Shell

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
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    return Shell(monkeypatch, tmp_path)


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


@pytest.mark.parametrize("broker", [f"foo://me:{SECRET}@h/x", f"redis://h;kafka://me:{SECRET}@h"])
def test_doctor_names_a_transport_that_is_not_here(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, database_url: str, broker: str
) -> None:
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", database_url)
    monkeypatch.setenv("TASKS_APP_BROKER_URL", broker)

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
    return subprocess.run(
        [sys.executable, "-W", "ignore", BIN / "celery", "-A", "tasks_app", *words],
        cwd=folder,
        env={**kept, **urls, **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
