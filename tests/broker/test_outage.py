"""Why a broker is away, and how often the log says so."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from amqp.exceptions import AccessRefused, NotAllowed
from redis import exceptions as redis_errors

from tasks_app.broker.outage import Outage, why_away

BROKER = "amqp://me:**@host/shop"


@pytest.mark.parametrize(
    ("error", "fact", "ends_with"),
    [
        (
            AccessRefused("ACCESS_REFUSED - Login was refused using PLAIN"),
            "does not let in the user of its URL",
            3,
        ),
        (
            AccessRefused("ACCESS_REFUSED - access to queue 'mail' in vhost 'x' refused for user"),
            "refuses access to queue 'mail' in vhost 'x'",
            3,
        ),
        (NotAllowed("NOT_ALLOWED - vhost x not found"), "has no such virtual host", 3),
        (
            NotAllowed("access to vhost 'x' refused for user 'me'"),
            "keeps the user of its URL out of the virtual host",
            3,
        ),
        (
            NotAllowed("access to vhost 'x' refused: connection limit (5) is reached"),
            "has no connection left",
            None,
        ),
        (redis_errors.AuthenticationError("WRONGPASS"), "does not let in the user of its URL", 3),
        (
            redis_errors.ResponseError("DB index is out of range"),
            "has no database of that number",
            3,
        ),
        (redis_errors.BusyLoadingError("loading"), "does not answer (BusyLoadingError)", None),
        (redis_errors.TimeoutError("s3cret"), "does not answer in time", None),
        (OSError(111, "Connection refused"), "does not answer: Connection refused", None),
        (TypeError("s3cret"), "cannot be asked (TypeError)", 2),
    ],
)  # fmt: skip
def test_a_cause_is_a_sentence_and_says_whether_waiting_helps(
    error: Exception, fact: str, ends_with: int | None
) -> None:
    cause = why_away(error)
    assert (cause.fact, cause.ends_with) == (fact, ends_with)
    assert cause.advice


def test_a_name_with_control_characters_is_escaped() -> None:
    error = AccessRefused("access to queue 'a\nERROR \x1b[2J' in vhost 'x' refused for user 'me'")
    assert why_away(error).fact == r"refuses access to queue 'a\nERROR \x1b[2J' in vhost 'x'"


def test_an_outage_is_said_at_once_then_once_a_minute_and_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = SimpleNamespace(now=1000.0)
    outage = Outage(lambda: clock.now)
    cause = why_away(ConnectionRefusedError(111, "Connection refused"))
    with caplog.at_level(logging.WARNING):
        outage.record_answer()
        for _ in range(150):
            outage.record_failure(BROKER, cause)
            clock.now += 1
        noted = outage.note
        outage.record_answer()
        outage.record_answer()

    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(", since")[0] for line in said[:3]] == [
        f"The broker {BROKER} does not answer: Connection refused"
    ] * 3
    assert said[3:] == ["The broker answers again. It was away for 2 min."]
    assert noted.startswith("the broker does not answer: Connection refused, since 20")
    assert outage.note == ""
