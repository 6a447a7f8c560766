"""The reporter: the worker's parent sends what its children wrote, in bursts.

It uses the connection over which Celery sends its own events, and sends while task events are on:
by ``-E``, or by ``enable_events``, which Flower asks for by itself. The first error silences it for
a while; then it begins anew, so that Flower recovers soon after the broker does.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from celery import bootsteps
from celery.events.event import Event
from celery.utils.time import utcoffset

from tasks_app.broker.events.pipe import EventPipe
from tasks_app.broker.events.writer import LATE
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.runtime.scoreboard.location import SLOTS_VARIABLE
from tasks_app.runtime.scoreboard.scoreboard import Scoreboard

log = quiet_logger(__name__)

EVERY_S = 0.1
UNWANTED_EVERY_S = 1.0
"""While nobody wants to hear of tasks: how late it is seen that somebody does."""
SILENT_S = 15.0
"""After an error, and after a burst that took longer than ``SLOW_S``."""
SLOW_S = 1.0
BURST = 100
"""Events per message; Celery's own bursts have 24."""
LONGEST_TICK_S = 0.2
"""The parent has other work; what is left waits in the pipe."""


class Reporter(bootsteps.StartStopStep):
    """A timer of the worker's own loop that reads the pipe and publishes."""

    requires = ("celery.worker.components:Timer",)

    def include_if(self, worker: Any) -> bool:  # noqa: ARG002  Celery's signature
        """Stay away where they are switched off for good."""
        return load_settings().events != "off"

    def start(self, worker: Any) -> None:
        """Begin to send."""
        path = Path(os.environ[SLOTS_VARIABLE])
        self._slots = Scoreboard(path)
        self._pipe = EventPipe.beside(path)
        self._pipe.open()
        self._worker = worker
        self._silent_until = 0.0
        self._slots.report(bool(worker.task_events))
        worker.timer.call_after(EVERY_S, self._again)

    def stop(self, worker: Any) -> None:
        """Go on while the pool drains: the timer ends with the process."""

    def _again(self) -> None:
        """Tick from time to time, rarely while nobody listens: each time wakes the whole worker."""
        try:
            self.tick()
        finally:
            pause_s = EVERY_S if self._slots.reporting else UNWANTED_EVERY_S
            self._worker.timer.call_after(pause_s, self._again)

    def tick(self) -> None:
        """Send what waits; tell the children whether anybody wants more."""
        dispatcher = getattr(self._worker.consumer, "event_dispatcher", None)
        wanted = time.monotonic() >= self._silent_until and is_wanted(dispatcher)
        self._slots.report(wanted)
        if not wanted:
            self._pipe.drain()
            return
        ends = time.monotonic() + LONGEST_TICK_S
        while time.monotonic() < ends:
            lines = self._pipe.read()
            if not lines:
                return
            self._send(dispatcher, lines)
            if time.monotonic() < self._silent_until:
                return

    def _send(self, dispatcher: Any, lines: list[bytes]) -> None:
        began = time.monotonic()
        try:
            for burst in bursts(dispatcher, map(json.loads, lines)):
                publish(dispatcher, burst)
        except Exception as error:
            self._be_silent(type(error).__name__)
        else:
            took = time.monotonic() - began
            if took > SLOW_S:
                self._be_silent(f"the broker took {took:.1f} s")

    def _be_silent(self, why: str) -> None:
        self._silent_until = time.monotonic() + SILENT_S
        log.warning("events of tasks are off for %g s: %s", SILENT_S, why)


def is_wanted(dispatcher: Any) -> bool:
    """Whether Celery itself would send events of tasks now."""
    if dispatcher is None or not dispatcher.enabled:
        return False
    return not dispatcher.groups or "task" in dispatcher.groups


def bursts(dispatcher: Any, events: Iterable[dict[str, Any]]) -> Iterator[list[Any]]:
    """Yield the events that are not late, as Celery sends them, so many at a time."""
    now, offset = time.monotonic(), utcoffset()
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
    """Send many as one message, as Celery's dispatcher does, but let errors out."""
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
