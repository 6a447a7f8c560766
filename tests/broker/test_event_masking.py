"""What may be seen of a task's data, and in which words."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tasks_app.broker.events import (
    LATE,
    LONGEST_LINE,
    EventPipe,
    EventWriter,
    events_of,
    line_of,
    shown,
)
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.handlers.settlement import exception_text
from tasks_app.domain.large_values.store import Reference
from tasks_app.domain.tasks.run import Cause
from tasks_app.runtime.hooks import Notice, NoticeKind

PAYLOAD = '{"card": "4711-canary", "pin": 1234, "list": [{"deep": "it\\"s"}], "n": 7, "yes": true}'


def notice(kind: NoticeKind, **values: Any) -> Notice:
    return Notice(kind, 42, "orders.confirm", "default", **values)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("card 4711-canary refused", "E: card *** refused"),
        ("{'card': '4711-canary'} is bad", "E: {'card': '***'} is bad"),
        ("pin 1234 of 7", "E: pin *** of 7"),
        ('it"s deep', "E: *** deep"),
        ("first line\nDETAIL: Failing row contains (canary)", "E: first line"),
        ("", "E"),
        ("x" * 500, f"E: {'x' * 296}…"),
    ],
)
def test_the_first_line_of_an_exception_is_shown_without_values_of_the_payload(
    message: str, text: str
) -> None:
    assert exception_text(Cause("E", message), PAYLOAD) == text


@pytest.mark.parametrize(
    "payload",
    [
        *(None, "no JSON", '{"a": ' + "[" * 600 + "]" * 600 + "}"),
        str(Reference(UUID(int=1), 70_000, encrypted=False)),
    ],
)
def test_a_payload_that_cannot_be_compared_hides_the_whole_line(payload: str | None) -> None:
    assert exception_text(Cause("E", "card 4711"), payload) == "E: ***"


def test_a_value_that_begins_another_leaves_nothing_of_it() -> None:
    payload = '{"short": "4711", "long": "4711-canary"}'
    assert exception_text(Cause("E", "card 4711-canary, not 4711"), payload) == (
        "E: card ***, not ***"
    )


def test_our_own_words_are_shown_whatever_the_payload_is() -> None:
    cause = Cause("process died", "Its process 1234 died while only this task ran in it.")
    assert exception_text(cause, None) == exception_text(cause, PAYLOAD)
    assert exception_text(cause, None) == f"{cause.kind}: {cause.message}"


def test_of_data_its_size_is_shown_and_the_chosen_keys() -> None:
    assert shown("payload", PAYLOAD, ()) == {"payload": "86 bytes"}
    assert shown("payload", PAYLOAD, ("n", "list", "other")) == {
        "n": 7,
        "list": '[{"deep": "it\\"s"}]',
        "payload": "86 bytes",
    }
    assert shown("payload", '"canary"', ("n",)) == {"payload": "8 bytes"}
    assert shown("payload", None, ("n",)) == {}
    assert shown("result", json.dumps({"n": "x" * 500}), ("n",))["n"] == "x" * 99 + "…"


def types(told: Notice) -> list[str]:
    return [event["type"] for event in events_of(told, ())]


def test_a_second_attempt_leaves_the_state_of_the_first_before_it_is_received() -> None:
    assert types(notice(NoticeKind.RECEIVED, attempt=1)) == ["task-received"]
    assert types(notice(NoticeKind.RECEIVED, attempt=2)) == ["task-retried", "task-received"]


def test_only_what_goes_out_for_a_failed_attempt_may_come_too_late() -> None:
    wait = timedelta(hours=1)
    (retried,) = events_of(notice(NoticeKind.RETRIED, attempt=1, wait=wait), ())
    again, received = events_of(notice(NoticeKind.RECEIVED, attempt=2), ())
    assert retried[LATE] > 3600
    assert LATE not in again | received


@pytest.mark.parametrize(
    ("kind", "expired"),
    [(NoticeKind.CANCELLED, False), (NoticeKind.SKIPPED, False), (NoticeKind.EXPIRED, True)],
)
def test_what_never_ran_to_its_end_is_revoked_and_says_how(kind: NoticeKind, expired: bool) -> None:
    (event,) = events_of(notice(kind), ())
    assert (event["type"], event["expired"], event["result"]) == ("task-revoked", expired, kind)
    assert (event["uuid"], event["name"]) == ("42", "orders.confirm")


@pytest.mark.parametrize(
    ("long", "fits"),
    [
        ({"traceback": "start " + "line\n" * 3000 + "the fault"}, "the fault"),
        ({"kwargs": "ä" * 9000 + "end"}, "end"),
        ({"traceback": "x" * 5000, "kwargs": "y" * 5000, "result": "z" * 9000 + "end"}, "end"),
    ],
)
def test_a_long_event_loses_beginnings_until_it_fits_a_line(
    long: dict[str, str], fits: str
) -> None:
    line = line_of({"type": "task-failed", "uuid": "42", **long})
    assert len(line) < LONGEST_LINE
    assert list(json.loads(line).values())[-1].endswith(fits)


class Collects(EventPipe):
    """A pipe that keeps the lines."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        self.lines.append(line)


@pytest.mark.parametrize(
    ("events", "kind", "attempt", "number"),
    [
        ("all", NoticeKind.SUCCEEDED, 1, 1),
        ("failures", NoticeKind.RECEIVED, 1, 0),
        ("failures", NoticeKind.STARTED, 1, 0),
        ("failures", NoticeKind.SUCCEEDED, 1, 0),
        ("failures", NoticeKind.SKIPPED, 1, 0),
        ("failures", NoticeKind.FAILED, 1, 1),
        ("failures", NoticeKind.RETRIED, 1, 1),
        ("failures", NoticeKind.RESCUED, 1, 1),
        ("failures", NoticeKind.RECEIVED, 2, 2),
        ("failures", NoticeKind.SUCCEEDED, 2, 1),
    ],
)
def test_with_failures_only_other_first_attempts_are_not_shown(
    events: Any, kind: NoticeKind, attempt: int, number: int
) -> None:
    pipe = Collects()
    EventWriter(pipe, Settings(events=events))(notice(kind, attempt=attempt))
    assert len(pipe.lines) == number
