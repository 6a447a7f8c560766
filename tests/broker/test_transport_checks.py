"""URLs of brokers that Celery cannot use, and those that it can."""

from __future__ import annotations

import pytest

from tasks_app.broker.config import celery_configuration, check_transports
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import ConfigurationError

SECRET = "s3cret"
NUMBER = "names a database of Redis by more than a number"
OPTION = "has an option{} behind its ? that Celery does not take"


@pytest.fixture(autouse=True)
def _clean() -> None:
    """No house here."""


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
