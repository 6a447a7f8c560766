"""What may be shown of settings."""

from __future__ import annotations

import pytest

from tasks_app import Settings
from tasks_app.domain.config.setting_sources import effective_settings, masked


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
        "postgresql:/me:hunter2@host/db",
        "me:hunter2@host/db",
        "postgresql+psycopg//me:hunter2@host/db",
        "host=h password='hunter2 x'",
        "redis://:hunter2/x@host",
        "redis://:hunter2#x@host",
        "redis://:hunter2",
    ],
)
def test_of_what_is_no_url_nothing_is_shown(url: str) -> None:
    assert "hunter2" not in masked(url, "broker_url")
