"""The reporter: the worker's parent sends the events of its children, in bursts.

It uses the connection over which Celery sends its own events, and sends while task events are on:
by ``-E``, or by ``enable_events``, which Flower requests by itself. An error silences it for a
while; then it begins again, so that Flower recovers soon after the broker does.
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
from tasks_app.broker.events import LATE
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.runtime.scoreboard.location import SLOTS_VARIABLE
from tasks_app.runtime.scoreboard.scoreboard import Scoreboard

log = quiet_logger(__name__)

EVERY_S = 0.1
UNWANTED_EVERY_S = 1.0
"""The period while nobody wants events: how late it notices that somebody does."""
SILENT_S = 15.0
"""A pause after an error, and after a burst that took longer than ``SLOW_S``."""
SLOW_S = 1.0
BURST = 100
"""Events per message; Celery's own bursts have 24."""
LONGEST_TICK_S = 0.2
"""The parent has other work; the rest waits in the pipe."""


class Reporter(bootsteps.StartStopStep):
    """A timer of the worker's own loop that reads the pipe and publishes, also while it drains."""

    requires = ("celery.worker.components:Timer",)
    clock = staticmethod(time.monotonic)

    def include_if(self, worker: Any) -> bool:  # noqa: ARG002  Celery's signature
        """Leave the step out where events are switched off."""
        return load_settings().events != "off"

    def start(self, worker: Any) -> None:
        path = Path(os.environ[SLOTS_VARIABLE])
        self._slots = Scoreboard(path)
        self._pipe = EventPipe.beside(path)
        self._pipe.open()
        self._worker = worker
        self._silent_until = 0.0
        self._slots.report(bool(worker.task_events))
        worker.timer.call_after(EVERY_S, self._again)

    def _again(self) -> None:
        """Tick again, rarely while nobody listens: each tick wakes the whole worker."""
        try:
            self.tick()
        finally:
            pause_s = EVERY_S if self._slots.reporting else UNWANTED_EVERY_S
            self._worker.timer.call_after(pause_s, self._again)

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
            self._be_silent(type(error).__name__)
        else:
            took = self.clock() - began
            if took > SLOW_S:
                self._be_silent(f"the broker took {took:.1f} s")

    def _be_silent(self, why: str) -> None:
        self._silent_until = self.clock() + SILENT_S
        log.warning("events of tasks are off for %g s: %s", SILENT_S, why)


def is_wanted(dispatcher: Any) -> bool:
    """Say whether Celery itself would send events of tasks now."""
    if dispatcher is None or not dispatcher.enabled:
        return False
    return not dispatcher.groups or "task" in dispatcher.groups


def bursts(dispatcher: Any, events: Iterable[dict[str, Any]], now: float) -> Iterator[list[Any]]:
    """Yield the events that are not too late, as Celery sends them, at most ``BURST`` at a time."""
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
