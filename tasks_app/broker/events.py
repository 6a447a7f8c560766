"""Celery events of single tasks, from the notices of our hooks.

Each task appears under its own id and name. A child hands its events to the worker's parent and
goes on; nothing here asks the broker.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tasks_app.broker.events.pipe import LONGEST_LINE, EventPipe
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.handlers.cause_line import decoded, exception_text
from tasks_app.domain.tasks.error_text import clean
from tasks_app.domain.tasks.masks import Masks, masks_of
from tasks_app.runtime.hooks import Notice, NoticeKind

Event = dict[str, Any]

LATE_AFTER_S = 0.25
"""How old ``task-retried`` may be when it is sent, or its wait, if that is longer.

Only this event replaces any other. If it arrived after those of the next attempt, from a faster
worker, it would show a finished task as waiting for ever.
"""
LATE = "late"
NO_MASKS = Masks()
LONGEST_VALUE = 100
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_FAILURES = {
    NoticeKind.FAILED,
    NoticeKind.RETRIED,
    NoticeKind.RESCUED,
    NoticeKind.CANCELLED,
    NoticeKind.EXPIRED,
}


class EventWriter:
    """A subscriber that writes the events of one process into the pipe."""

    def __init__(self, pipe: EventPipe, settings: Settings) -> None:
        self._pipe = pipe
        self._failures_only = settings.events == "failures"
        self._show = settings.events_shown
        self._masks = masks_of(settings.masked_paths)

    def __call__(self, notice: Notice) -> None:
        # A second attempt is always shown, or a failure that was overcome would stay red.
        if self._failures_only and notice.attempt < 2 and notice.kind not in _FAILURES:  # noqa: PLR2004
            return
        for event in events_of(notice, self._show, self._masks):
            self._pipe.write(line_of(event))


def events_of(notice: Notice, show: tuple[str, ...], masks: Masks = NO_MASKS) -> Iterator[Event]:
    """Yield the events of a notice; values of ``show`` are seen, but for what ``masks`` hide."""
    match notice.kind:
        case NoticeKind.RECEIVED:
            if notice.attempt > 1:  # no other event leads out of FAILURE
                yield _event("task-retried", notice)
            data = {} if notice.biz_key is None else {"biz_key": notice.biz_key}
            data |= shown("payload", notice.payload, show, notice.name, masks)
            yield _event(
                "task-received",
                notice,
                args="()",
                kwargs=repr(data),
                retries=notice.failures,
                routing_key=notice.queue,
            )
        case NoticeKind.STARTED:
            yield _event("task-started", notice)
        case NoticeKind.SUCCEEDED:
            runtime = (notice.run_ms or 0) / 1000
            data = shown("result", notice.result, show, notice.name, masks)
            yield _event("task-succeeded", notice, result=repr(data or None), runtime=runtime)
        case NoticeKind.FAILED:
            yield _event("task-failed", notice, **_cause(notice))
        case NoticeKind.RETRIED | NoticeKind.SNOOZED | NoticeKind.RESCUED:
            wait_s = notice.wait.total_seconds() if notice.wait else 0.0
            late = time.monotonic() + max(wait_s, LATE_AFTER_S)
            yield _event("task-retried", notice, **_cause(notice), **{LATE: late})
        case NoticeKind.CANCELLED | NoticeKind.SKIPPED | NoticeKind.EXPIRED:
            expired = notice.kind is NoticeKind.EXPIRED
            cause = _cause(notice).get("exception")
            why = f"{notice.kind}: {cause}" if cause else str(notice.kind)
            more = {"terminated": False, "signum": None, "expired": expired, "result": why}
            yield _event("task-revoked", notice, **more)
        case NoticeKind.RELEASED:
            pass  # it waits again, for which Celery has no event


def shown(
    label: str, text: str | None, keys: Sequence[str], name: str = "", masks: Masks = NO_MASKS
) -> dict[str, Any]:
    """Return what may be seen of a JSON text: its size and the values of ``keys``.

    Everybody who reaches Flower or the broker reads it, so other values are hidden.
    """
    if text is None:
        return {}
    values = masks.value(name, decoded(text)) if keys else None
    chosen = {
        key: _short(values[key]) for key in keys if isinstance(values, dict) and key in values
    }
    return {**chosen, label: f"{len(text.encode())} bytes"}


def _short(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return clean(text, LONGEST_VALUE)


def _event(type_: str, notice: Notice, **fields: Any) -> Event:
    return {
        "type": type_,
        "uuid": str(notice.task_id),
        "name": notice.name,  # in each, for listeners that start later
        "timestamp": time.time(),  # noqa: TID251  shown to people; nothing is decided by it
        **fields,
    }


def _cause(notice: Notice) -> Event:
    if notice.cause is None:
        return {}
    text = exception_text(notice.cause, notice.payload)
    return {"exception": text, "traceback": notice.cause.traceback}


def line_of(event: Event) -> bytes:
    """Return the event as one line that fits; long values lose their beginning."""
    line = _line(event)
    for name in ("traceback", "kwargs", "result", "exception"):
        too_long = len(line) + 1 - LONGEST_LINE
        if too_long > 0 and event.get(name):
            end = event[name].encode("utf-8", "replace")[too_long + len("…".encode()) :]
            event = {**event, name: "…" + end.decode("utf-8", "ignore")}
            line = _line(event)
    return line


def _line(event: Event) -> bytes:
    return _ENCODER.encode(event).encode("utf-8", "replace")
