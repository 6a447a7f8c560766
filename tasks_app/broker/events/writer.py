"""Celery events of single tasks: what the hooks tell, in the words that Flower understands.

Each task appears under its own id and name. A child hands its events to the worker's parent and
goes on; nothing here asks the broker.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from tasks_app.broker.events.masking import shown
from tasks_app.broker.events.pipe import LONGEST_LINE, EventPipe
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.handlers.cause_line import exception_text
from tasks_app.runtime.hooks import Kind, Notice

Event = dict[str, Any]

LATE_AFTER_S = 0.25
"""How old ``task-retried`` may be when it goes out, or its wait, if that is longer.

Of all events only this one replaces any other. One that came behind those of the next attempt,
from a worker that was faster, would show a finished task as waiting for ever.
"""
LATE = "late"
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_FAILURES = {Kind.FAILED, Kind.RETRIED, Kind.RESCUED, Kind.CANCELLED, Kind.EXPIRED}


class EventWriter:
    """A subscriber: writes events of one process into the pipe."""

    def __init__(self, pipe: EventPipe, settings: Settings) -> None:
        self._pipe = pipe
        self._failures_only = settings.events == "failures"
        self._show = settings.events_shown

    def __call__(self, notice: Notice) -> None:
        """Write what there is to show of it."""
        # A second attempt is always shown, or a failure that was mended would stay red.
        if self._failures_only and notice.attempt < 2 and notice.kind not in _FAILURES:  # noqa: PLR2004
            return
        for event in events_of(notice, self._show):
            self._pipe.write(line_of(event))


def events_of(notice: Notice, show: tuple[str, ...]) -> Iterator[Event]:
    """Return the events that say the same; values of the keys in ``show`` are not masked."""
    match notice.kind:
        case Kind.RECEIVED:
            if notice.attempt > 1:  # only this one leads out of FAILURE again
                yield _event("task-retried", notice)
            data = {} if notice.biz_key is None else {"biz_key": notice.biz_key}
            data |= shown("payload", notice.payload, show)
            yield _event(
                "task-received",
                notice,
                args="()",
                kwargs=repr(data),
                retries=notice.failures,
                routing_key=notice.queue,
            )
        case Kind.STARTED:
            yield _event("task-started", notice)
        case Kind.SUCCEEDED:
            runtime = (notice.run_ms or 0) / 1000
            data = shown("result", notice.result, show)
            yield _event("task-succeeded", notice, result=repr(data or None), runtime=runtime)
        case Kind.FAILED:
            yield _event("task-failed", notice, **_cause(notice))
        case Kind.RETRIED | Kind.SNOOZED | Kind.RESCUED:
            wait_s = notice.wait.total_seconds() if notice.wait else 0.0
            late = time.monotonic() + max(wait_s, LATE_AFTER_S)
            yield _event("task-retried", notice, **_cause(notice), **{LATE: late})
        case Kind.CANCELLED | Kind.SKIPPED | Kind.EXPIRED:
            expired = notice.kind is Kind.EXPIRED
            cause = _cause(notice).get("exception")
            why = f"{notice.kind}: {cause}" if cause else str(notice.kind)
            more = {"terminated": False, "signum": None, "expired": expired, "result": why}
            yield _event("task-revoked", notice, **more)
        case Kind.RELEASED:
            pass  # it waits again, as nobody in Celery's world ever does


def _event(type_: str, notice: Notice, **fields: Any) -> Event:
    return {
        "type": type_,
        "uuid": str(notice.task_id),
        "name": notice.name,  # in each: who listens from now on shall know it
        "timestamp": time.time(),  # noqa: TID251  shown to people; nothing is decided by it
        **fields,
    }


def _cause(notice: Notice) -> Event:
    if notice.cause is None:
        return {}
    text = exception_text(notice.cause, notice.payload)
    return {"exception": text, "traceback": notice.cause.traceback}


def line_of(event: Event) -> bytes:
    """Return the event as one line that fits; what is too long loses its beginning."""
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
