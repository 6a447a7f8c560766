"""No password of a URL gets out, however wrong the URL is: not in a list, not in an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import make_url

from tasks_app.broker.app import make_celery
from tasks_app.broker.config import effective_celery_settings
from tasks_app.domain.config.setting_sources import effective_settings
from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.domain.errors import ConfigurationError

pytestmark = pytest.mark.test_all

BIN = Path(sys.executable).parent
CORE = "hunter"
ODD = st.text(st.sampled_from("#/?@:;[]%&=+ \t'\"\\éK℀1a"), max_size=4)
PASSWORDS = st.tuples(ODD, ODD, ODD).map(lambda odd: f"{odd[0]}{CORE}{odd[1]}{CORE}{odd[2]}")
BROKERS = st.sampled_from(
    [
        "redis://:{}@127.0.0.1:1/0",
        "amqp://me:{}@127.0.0.1:1//",
        "sentinel://:{}@127.0.0.1:1;sentinel://:{}@127.0.0.1:2",
        "redis:/:{}@127.0.0.1:1/0",
        ":{}@127.0.0.1",
    ]
)
DATABASES = st.sampled_from(
    [
        "postgresql+psycopg://me:{}@127.0.0.1:1/x",
        "postgresql:/me:{}@127.0.0.1:1/x",
        "postgresql+psycopg//me:{}@127.0.0.1/x",
        "me:{}@127.0.0.1/x",
        "postgresql+psycopg://me:{}",
        "host=127.0.0.1 password={}",
    ]
)
COMMANDS = [
    *(["tasks-app", *words] for words in (["config"], ["doctor"], ["scan"], ["list"])),
    *(
        ["celery", "-A", "tasks_app", *words]
        for words in (["worker"], ["beat"], ["report"], ["inspect", "ping"], ["status"], ["flower"])
    ),
]


def said_of(name: str, url: str) -> tuple[Settings | None, str]:
    """Read the settings with this URL; return them unless it is refused, and what is said."""
    before = os.environ.get(name)
    os.environ[name] = url
    try:
        read = load_settings()
        return read, repr(effective_settings(read)) + repr(read)
    except ConfigurationError as error:
        return None, str(error)
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@given(form=DATABASES, password=PASSWORDS)
@example(form="postgresql+psycopg://me:{}@127.0.0.1:1/x", password="pa@hunter:word")
@example(form="postgresql+psycopg://me:{}@127.0.0.1:1/x", password="#hunter/")
@example(form="postgresql+psycopg://me:{}", password="1?hunterhunter")
def test_no_password_of_a_database_url_is_shown_or_told_by_sqlalchemy(
    form: str, password: str
) -> None:
    assume("@" in form or "@" not in password)  # what follows is the host, then
    read, said = said_of("TASKS_APP_DATABASE_URL", form.format(password))
    assume("@" in form or read is None)  # 1/x, say, is read as a port and a database

    assert CORE not in said
    if read is not None:
        url = make_url(read.database)
        assert CORE not in f"{url.host} {url.port}"


@settings(max_examples=60, report_multiple_bugs=False)
@given(form=BROKERS, password=PASSWORDS)
@example(form="redis://:{}@127.0.0.1:1/0", password="hunter#x")
@example(form="redis://:{}@127.0.0.1:1/0", password="1/hunter")
@example(form="redis://:{}@127.0.0.1:1/0", password="1?hunter")
@example(form="amqp://me:{}@127.0.0.1:1//", password="℀hunter")
def test_no_password_of_a_broker_url_is_shown_or_told_by_celery(form: str, password: str) -> None:
    assume("@" in form or "@" not in password)
    read, said = said_of("TASKS_APP_BROKER_URL", form.format(*[password] * 2))

    assert CORE not in said
    if read is not None:
        assert CORE not in told_by_celery(read)


def told_by_celery(read: Settings) -> str:
    """What ``report`` and the like print, or the error that they end with."""
    try:
        app = make_celery(read)
        with app.connection_for_read() as connection:
            said = f"{connection.as_uri()} {connection.as_uri(include_password=False)}"
        return f"{said} {app.bugreport()} {effective_celery_settings(app)!r}"
    except (ValueError, ConfigurationError) as error:
        return str(error)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_tells_the_password_of_a_broker(words: list[str], tmp_path: Path) -> None:
    for url in (f"redis://:{CORE}#x@127.0.0.1:1/0", f"redis://:1/{CORE}@127.0.0.1:1/0"):
        environment = {
            **os.environ,
            "TASKS_APP_DATABASE_URL": "postgresql+psycopg://me@127.0.0.1:1/x",
            "TASKS_APP_BROKER_URL": url,
        }
        done = subprocess.run(
            [BIN / words[0], *words[1:]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = " ".join((done.stdout + done.stderr).split())

        assert done.returncode != 0
        assert CORE not in said
        assert "Traceback" not in said
        assert "TASKS_APP_BROKER_URL is wrong: use a URL such as redis://" in said


def test_a_url_of_celerys_own_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text(f"broker_url = 'redis://:{CORE}#x@127.0.0.1:1/0'\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    for words in ([BIN / "celery", "-A", "tasks_app", "report"], [BIN / "tasks-app", "doctor"]):
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env={**environment, "TASKS_APP_DATABASE_URL": "postgresql+psycopg://a@127.0.0.1:1/x"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert CORE not in done.stdout + done.stderr
        assert "The URL in broker_url cannot be read" in done.stdout + done.stderr
