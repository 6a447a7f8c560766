"""What a check-up finds at the broker, in its URL and in Celery's settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery

from tasks_app.broker.checks import examine_access, examine_broker, examine_celery
from tasks_app.broker.config import (
    celery_configuration,
    check_transports,
    effective_celery_settings,
)
from tasks_app.broker.defaults import celery_defaults
from tasks_app.broker.messages import POOL_VARIABLE
from tasks_app.broker.processes import NODE_VARIABLE, QUEUES_VARIABLE
from tasks_app.domain.config.setting_sources import unknown_variables
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.finding import Finding
from tasks_app.embedded.servers import Valkey
from tasks_app.runtime.scoreboard import SLOTS_VARIABLE

SECRET = "hunter2"


@pytest.fixture
def written_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that CELERY_CONFIG_MODULE names, empty until a test writes to it."""
    path = tmp_path / "checkup_config.py"
    path.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CELERY_CONFIG_MODULE", "checkup_config")
    yield path
    sys.modules.pop("checkup_config", None)


def app_with(broker: object, **theirs: object) -> Celery:
    app = Celery(set_as_current=False)
    app.conf.update(celery_defaults(broker, 1.0) | theirs)
    return app


def said(findings: list[Finding]) -> list[str]:
    return [f"{f.level} {f.subject}: {f.fact}" for f in findings]


@pytest.mark.usefixtures("written_config")
def test_a_broker_that_answers_is_named(broker: Valkey) -> None:
    (finding,) = examine_broker(app_with(broker.url))
    assert said([finding])[0].startswith("ok broker: Valkey 9.")


@pytest.mark.usefixtures("written_config")
def test_a_broker_that_drops_messages_is_a_warning(broker: Valkey) -> None:
    client = redis.Redis.from_url(broker.url)
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        findings = examine_broker(app_with(broker.url))
    finally:
        client.config_set("maxmemory-policy", "noeviction")
        client.close()
    assert said(findings)[1] == "warn broker: drops messages when it is full (allkeys-lru)"


@pytest.mark.usefixtures("written_config")
@pytest.mark.parametrize(
    ("url", "is_open"),
    [
        ("redis://10.0.0.7:6379/0", True),
        ("redis://broker", True),
        ("redis://user@broker/0", True),
        ("redis://127.0.0.1/0;redis://10.0.0.7/0", True),
        (["redis://127.0.0.1/0", "redis://10.0.0.7/0"], True),
        ("amqp://broker//", True),
        ("redis://0.0.0.0/0", True),
        (f"redis://:{SECRET}@10.0.0.7/0", False),
        (f"amqp://user:{SECRET}@broker//", False),
        ("redis://127.0.0.1:6379/0", False),
        ("redis://[::1]/0", False),
        ("redis://localhost/0", False),
        ("memory://", False),
    ],
)
def test_a_broker_elsewhere_without_a_password_is_a_warning(url: object, is_open: bool) -> None:
    assert said(examine_access(app_with(url))) == [
        "warn broker: is on another machine, and its URL has no password"
    ] * int(is_open)


@pytest.mark.usefixtures("written_config")
@pytest.mark.test_all
def test_a_broker_that_is_away_is_said_without_its_password() -> None:
    (finding,) = examine_broker(app_with(f"redis://:{SECRET}@127.0.0.1:1/0"))
    assert finding.away
    assert finding.fact == "does not answer: Connection refused"
    assert SECRET not in str(finding)


@pytest.mark.usefixtures("written_config")
@pytest.mark.test_all
def test_a_broker_that_refuses_a_user_is_said_without_his_password(broker: Valkey) -> None:
    (finding,) = examine_broker(app_with(broker.url.replace("://", f"://{SECRET}:{SECRET}@")))
    assert finding.fact == "does not let in the user of its URL"
    assert SECRET not in str(finding)


@pytest.mark.usefixtures("written_config")
def test_our_own_settings_do_no_harm() -> None:
    assert said(examine_celery(app_with("redis://x"))) == [
        "ok celery: all settings are known and harmless"
    ]


@pytest.mark.usefixtures("written_config")
def test_settings_that_celery_does_not_know_come_with_the_nearest_one(written_config: Path) -> None:
    written_config.write_text(
        "worker_concurency = 3\nCELERY_TASK_ACKS_LATE = True\nMY_LIMIT = 1\n_own = 1"
    )
    findings = examine_celery(app_with("redis://x"))
    assert [f.advice for f in findings] == ["Write worker_concurrency.", "Write task_acks_late."]


@pytest.mark.usefixtures("written_config")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("worker_prefetch_multiplier", 4),
        ("accept_content", ["json", "pickle"]),
        ("beat_scheduler", "celery.beat:PersistentScheduler"),
        ("worker_consumer", "celery.worker.consumer:Consumer"),
        ("worker_pool", "gevent"),
    ],
)
def test_settings_that_do_harm_are_named_without_their_value(name: str, value: object) -> None:
    (finding,) = examine_celery(app_with("redis://x", **{name: value}))
    assert name in finding.fact
    assert SECRET not in str(finding)


@pytest.mark.usefixtures("written_config")
def test_what_is_said_of_celerys_tasks_is_told_to_bound_ours_or_to_pass_them_by() -> None:
    theirs = {
        "task_time_limit": 90,
        "task_acks_late": True,
        "result_backend": f"redis://{SECRET}@x",
    }
    harmless, bounds, idle = examine_celery(app_with("redis://x", **theirs))
    assert harmless.fact.endswith("known and harmless")
    assert said([bounds]) == ["ok celery: its time limits bound each task: hard_timeout 90s"]
    assert idle.fact.startswith("result_backend, task_acks_late: for Celery tasks only,")
    assert SECRET not in str(idle)


@pytest.mark.usefixtures("written_config")
def test_effective_settings_say_where_they_come_from_and_keep_secrets(
    written_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written_config.write_text(
        "worker_concurrency = 3\nbroker_transport_options = {'socket_timeout': 9}\n"
        f"redis_backend_settings = 1\nsecurity_key_password = '{SECRET}'\n"
    )
    theirs = {"worker_concurrency": 3, "security_key_password": SECRET}

    found = {
        e.name: e for e in effective_celery_settings(app_with(f"redis://:{SECRET}@x", **theirs))
    }
    monkeypatch.setenv("CELERY_BROKER_URL", f"redis://:{SECRET}@y")
    other = {e.name: e for e in effective_celery_settings(app_with(f"redis://:{SECRET}@x"))}

    assert SECRET not in str([found, other])
    assert (found["worker_concurrency"].value, found["worker_concurrency"].source) == (
        3,
        "celeryconfig",
    )
    assert found["security_key_password"].value == "***"
    assert found["broker_transport_options"].source == "celeryconfig, tasks_app"
    assert found["broker_url"].value == "redis://:***@x"
    assert found["broker_url"].source == "TASKS_APP_BROKER_URL"
    assert (other["broker_url"].value, other["broker_url"].source) == (
        "redis://:***@y",
        "environment",
    )
    assert found["worker_prefetch_multiplier"].source == "tasks_app"
    assert "broker_read_url" not in found
    assert "worker_send_task_events" not in found


@pytest.mark.usefixtures("written_config")
def test_what_our_processes_tell_their_parts_is_no_misspelt_setting() -> None:
    internal = (NODE_VARIABLE, POOL_VARIABLE, QUEUES_VARIABLE, SLOTS_VARIABLE)
    assert unknown_variables(dict.fromkeys(internal, "x")) == []


SECRET = "s3cret"
NUMBER = "names a database of Redis by more than a number"
OPTION = "has an option{} behind its ? that Celery does not take"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"redis://:{SECRET}@host/0?x=1", OPTION.format(" x")),
        (f"redis://:{SECRET}@host/0?x=1&y=2", OPTION.format("")),
        (f"redis://host/0?password={SECRET}", OPTION.format(" password")),
        (f"rediss://:{SECRET}@host/0?ssl_cert_reqs=sometimes", OPTION.format(" ssl_cert_reqs")),
        (f"rediss://:{SECRET}@host/0?ssl_bogus=1", OPTION.format(" ssl_bogus")),
        (f"amqp://me:{SECRET}@host/shop?heartbeat=often", OPTION.format(" heartbeat")),
        (f"redis://:{SECRET}@host/abc", NUMBER),
        (f"redis://:{SECRET}@host/-1", NUMBER),
        (f"redis://:{SECRET}@host/0/1", NUMBER),
        (f"redis://one/0;redis://:{SECRET}@two/abc", NUMBER),
        ("redis+socket:///run/redis.sock?virtual_host=abc", NUMBER),
        (f"sentinel://:{SECRET}@one:26379;sentinel://two:26379", "asks Sentinel for no master"),
        (f"amqp://me:{SECRET}@host/a%0Ab", "has a control character"),
        (f"amqp://me:{SECRET}@host/a\nb", "has a control character"),
        (f"foo://me:{SECRET}@host", "names the transport foo"),
    ],
)
def test_what_celery_cannot_use_is_one_sentence_and_what_to_do(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        celery_configuration(Settings(broker_url=url))
    assert str(refused.value).startswith(f"The URL in TASKS_APP_BROKER_URL {said}")
    assert str(refused.value).count(". ") == 1
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        *("redis://host", "redis://host/", "redis://:p%40ss@host:6379/15", "redis://host/0;redis://h2/1"),
        *("rediss://host/0?ssl_cert_reqs=required", "rediss://host/0?ssl_ca_certs=/etc/ca.pem"),
        *("redis+socket:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=3"),
        *("amqp://me@host", "amqp://me@host//", "amqp://host/shop?heartbeat=30", "amqps://host/shop"),
        *("sentinel://one:26379/0;sentinel://two:26379/0", "memory://", "host"),
    ],
)  # fmt: skip
def test_what_it_can_use_passes(url: str) -> None:
    check_transports([("broker_url", url)], {"master_name": "shop"})


def test_a_result_backend_is_no_broker() -> None:
    check_transports([("CELERY_RESULT_BACKEND", "redis://host/abc?x=1")], {})
