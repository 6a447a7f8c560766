"""Celery events of single tasks: children write them to a pipe, their parent sends them."""

from __future__ import annotations

import fcntl
import json
import os
import select
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from celery import bootsteps
from celery.events.event import Event
from celery.utils.time import utcoffset

from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.domain.handlers.settlement import decode_or_none, exception_text
from tasks_app.domain.tasks.error_text import quiet_logger, storable_text
from tasks_app.domain.tasks.masks import Masks, masks_of
from tasks_app.runtime.hooks import Notice
from tasks_app.runtime.hooks import NoticeKind as Kind
from tasks_app.runtime.scoreboard import SLOTS_VARIABLE, Scoreboard

log = quiet_logger(__name__)
EVERY_S = 0.1
UNWANTED_EVERY_S = 1.0  # while no client wants events: so late it notices that one does
SILENT_S = 15.0  # after an error, and after a burst that took longer than SLOW_S
SLOW_S = 1.0
BURST = 100  # events per message; Celery's own bursts have 24
LONGEST_TICK_S = 0.2  # the parent has other work; the rest waits in the pipe


class Reporter(bootsteps.StartStopStep):
    """A timer of the worker's own loop that reads the pipe and publishes, also while it drains."""

    requires = ("celery.worker.components:Timer",)
    clock = staticmethod(time.monotonic)

    def include_if(self, worker: Any) -> bool:  # noqa: ARG002  Celery's signature
        return load_settings().events != "off"

    def start(self, worker: Any) -> None:
        path = Path(os.environ[SLOTS_VARIABLE])
        self._slots = Scoreboard(path)
        self._pipe = EventPipe.beside(path)
        self._pipe.open()
        self._worker = worker
        self._silent_until = 0.0
        self._slots.report(bool(worker.task_events))
        worker.timer.call_after(EVERY_S, self._tick_again)

    def _tick_again(self) -> None:
        """Tick, rarely while no client listens: each tick wakes the whole worker."""
        try:
            self.tick()
        finally:
            pause_s = EVERY_S if self._slots.reporting else UNWANTED_EVERY_S
            self._worker.timer.call_after(pause_s, self._tick_again)

    def tick(self) -> None:
        """Send what waits, and tell the children whether events are wanted."""
        dispatcher = getattr(self._worker.consumer, "event_dispatcher", None)
        wanted = self.clock() >= self._silent_until and is_wanted(dispatcher)
        self._slots.report(wanted)
        if not wanted:
            self._pipe.drain()
            return
        ends = self.clock() + LONGEST_TICK_S
        while self.clock() < ends:
            lines = self._pipe.read()
            if not lines:
                return
            self._send(dispatcher, lines)
            if self.clock() < self._silent_until:
                return

    def _send(self, dispatcher: Any, lines: list[bytes]) -> None:
        began = self.clock()
        try:
            for burst in bursts(dispatcher, map(json.loads, lines), began):
                publish(dispatcher, burst)
        except Exception as error:
            why = type(error).__name__
        else:
            took = self.clock() - began
            if took <= SLOW_S:
                return
            why = f"the broker took {took:.1f} s"
        self._silent_until = self.clock() + SILENT_S
        log.warning("events of tasks are off for %g s: %s", SILENT_S, why)


def is_wanted(dispatcher: Any) -> bool:
    if dispatcher is None or not dispatcher.enabled:
        return False
    return not dispatcher.groups or "task" in dispatcher.groups


def bursts(dispatcher: Any, events: Iterable[dict[str, Any]], now: float) -> Iterator[list[Any]]:
    """Yield the events that are not too late, as Celery sends them, in lists of ``BURST``."""
    offset = utcoffset()
    burst: list[Any] = []
    for fields in events:
        if fields.pop(LATE, now) < now:
            continue
        burst.append(
            Event(
                hostname=dispatcher.hostname,
                utcoffset=offset,
                pid=os.getpid(),
                clock=dispatcher.clock.forward(),
                **fields,
            )
        )
        if len(burst) == BURST:
            yield burst
            burst = []
    if burst:
        yield burst


def publish(dispatcher: Any, burst: list[Any]) -> None:
    """Send a burst as one message, as Celery's dispatcher does, but raise errors."""
    with dispatcher.mutex:
        producer = dispatcher.producer
        if producer is not None:
            producer.publish(
                burst,
                routing_key="task.multi",
                exchange=dispatcher.exchange.name,
                declare=[dispatcher.exchange],
                serializer=dispatcher.serializer,
                headers=dispatcher.headers,
                delivery_mode=dispatcher.delivery_mode,
                retry=False,
            )


TaskEvent = dict[str, Any]
LATE_AFTER_S = 0.25
"""How old ``task-retried`` may be when it is sent, or its wait, if that is longer.

Only this event replaces any other. If it arrived after those of the next attempt, from a faster
worker, it would show a finished task as waiting for ever.
"""
LATE = "late"
NO_MASKS = Masks()
_FAILURES = {Kind.FAILED, Kind.RETRIED, Kind.RESCUED, Kind.CANCELLED, Kind.EXPIRED}


class EventWriter:
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


def events_of(
    notice: Notice, show: tuple[str, ...], masks: Masks = NO_MASKS
) -> Iterator[TaskEvent]:
    """Yield the events of a notice; they show the values of ``show`` that ``masks`` do not hide."""
    match notice.kind:
        case Kind.RECEIVED:
            if notice.attempt > 1:  # no other event ends FAILURE
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
        case Kind.STARTED:
            yield _event("task-started", notice)
        case Kind.SUCCEEDED:
            runtime = (notice.run_ms or 0) / 1000
            data = shown("result", notice.result, show, notice.name, masks)
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
            pass  # it waits again; Celery has no event for that


def shown(
    label: str, text: str | None, keys: Sequence[str], name: str = "", masks: Masks = NO_MASKS
) -> dict[str, Any]:
    """Return what may be shown of a JSON text: its size and the values of ``keys``.

    Other values stay hidden, because everybody who reaches Flower or the broker can read this.
    """
    if text is None:
        return {}
    values = masks.value(name, decode_or_none(text)) if keys else None
    chosen = {
        key: _short(values[key]) for key in keys if isinstance(values, dict) and key in values
    }
    return {**chosen, label: f"{len(text.encode())} bytes"}


def _short(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return storable_text(text, 100)


def _event(type_: str, notice: Notice, **fields: Any) -> TaskEvent:
    return {
        "type": type_,
        "uuid": str(notice.task_id),
        "name": notice.name,  # in each, for listeners that start later
        "timestamp": time.time(),  # noqa: TID251  shown to people; nothing is decided by it
        **fields,
    }


def _cause(notice: Notice) -> TaskEvent:
    if notice.cause is None:
        return {}
    text = exception_text(notice.cause, notice.payload)
    return {"exception": text, "traceback": notice.cause.traceback}


LONGEST_LINE = select.PIPE_BUF
"""Up to this length a write is atomic among all writers."""
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def line_of(event: TaskEvent) -> bytes:
    """Return the event as one line that fits; long values lose their beginning."""
    line = _line(event)
    for name in ("traceback", "kwargs", "result", "exception"):
        too_long = len(line) + 1 - LONGEST_LINE
        if too_long > 0 and event.get(name):
            end = event[name].encode("utf-8", "replace")[too_long + len("…".encode()) :]
            event = {**event, name: "…" + end.decode("utf-8", "ignore")}
            line = _line(event)
    return line


def _line(event: TaskEvent) -> bytes:
    return _ENCODER.encode(event).encode("utf-8", "replace")


CAPACITY = 1024 * 1024
"""Bytes that may wait for the parent: some thousand events, about a second of a busy worker."""


class EventPipe:
    """One worker's pipe, a FIFO in its slot folder; each process opens its own end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reading: int | None = None
        self._writing: int | None = None
        self._rest = b""
        self.lost = 0  # lines that this process could not write

    @classmethod
    def beside(cls, slots: Path) -> EventPipe:
        return cls(slots.with_name("events"))

    def open(self) -> None:
        """Create the pipe and hold its reading end, for the parent.

        It opens both directions, or the pipe would end whenever there is no child.
        """
        with suppress(FileExistsError):
            os.mkfifo(self._path, 0o600)
        self._reading = os.open(self._path, os.O_RDWR | os.O_NONBLOCK)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(OSError):
                fcntl.fcntl(self._reading, fcntl.F_SETPIPE_SZ, CAPACITY)

    def write(self, line: bytes) -> None:
        if len(line) >= LONGEST_LINE:
            self.lost += 1
            return
        try:
            if self._writing is None:
                self._writing = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
            os.write(self._writing, line + b"\n")
        except OSError:  # full, or without a parent
            self.lost += 1

    def read(self) -> list[bytes]:
        """Return some of the waiting lines; empty: the pipe is."""
        if self._reading is None:
            return []
        try:
            piece = os.read(self._reading, 64 * 1024)
        except BlockingIOError:
            return []
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return lines

    def drain(self) -> None:
        while self.read():
            pass
