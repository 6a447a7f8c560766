"""Discrete events: processes that are generators, and what they wait for.

A process yields (resource, amount) and goes on when the resource has served it.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Protocol

QUANTUM_S = 0.003
"""A longer burst of CPU lets others in, as the kernel's scheduler does."""

Process = Generator[tuple["Resource", float], None, None]


class Resource(Protocol):
    """What a process waits for."""

    def serve(self, process: Process, amount: float) -> None:
        """Let it wait; ``Clock.resume`` when it is served."""


class Clock:
    """The time, and what happens at which instant."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do it then."""
        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), act))

    def resume(self, process: Process) -> None:
        """Let a process run until it waits again."""
        for resource, amount in process:
            resource.serve(process, amount)
            return

    def run(self, is_over: Callable[[], bool]) -> None:
        """Let time pass."""
        while self._events and not is_over():
            self.now, _, act = heapq.heappop(self._events)
            act()


class Delay:
    """Takes as long as it takes, however many wait: the network, a handler that sleeps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def serve(self, process: Process, amount: float) -> None:
        self._clock.after(amount, lambda: self._clock.resume(process))


class Cores:
    """The cores of a host: first come, first served, and slower the more of them are busy."""

    def __init__(self, clock: Clock, number: int, slowdown: float = 1.0) -> None:
        self._clock, self.number, self._slowdown = clock, number, slowdown
        self._waiting: deque[tuple[Process, float]] = deque()
        self._busy = 0
        self.busy_s = 0.0

    def serve(self, process: Process, amount: float) -> None:
        if self._busy == self.number:
            self._waiting.append((process, amount))
        else:
            self._begin(process, amount)

    def _begin(self, process: Process, amount: float) -> None:
        others = self._busy / (self.number - 1) if self.number > 1 else 0.0
        self._busy += 1
        part = min(amount, QUANTUM_S)
        span = part * (1 + (self._slowdown - 1) * others)
        self.busy_s += span
        self._clock.after(span, lambda: self._end(process, amount - part))

    def _end(self, process: Process, left: float) -> None:
        self._busy -= 1
        if left > 0:
            self._waiting.append((process, left))
        if self._waiting:
            self._begin(*self._waiting.popleft())
        if left <= 0:
            self._clock.resume(process)


class Lock:
    """One holder at a time, as the interpreter of a process: ``(lock, 1)`` takes, 0 gives back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Process] = deque()
        self._held = False

    def serve(self, process: Process, amount: float) -> None:
        if amount and self._held:
            self._waiting.append(process)
            return
        if not amount and self._waiting:
            self._go(self._waiting.popleft())
        else:
            self._held = bool(amount)
        self._go(process)

    def _go(self, process: Process) -> None:
        self._clock.after(0, lambda: self._clock.resume(process))


class Log:
    """The log of PostgreSQL: one flush at a time, which serves all who came before it began.

    It takes a fixed time and what each of them has written. With a ``commit_delay`` also those are
    served who come while it waits.
    """

    def __init__(self, clock: Clock, flush_s: float, delay_s: float = 0.0) -> None:
        self._clock, self._flush_s, self._delay_s = clock, flush_s, delay_s
        self._waiting: list[tuple[Process, float]] = []
        self._at_work = False
        self.busy_s = 0.0
        """Without the fixed time of each flush."""

    def serve(self, process: Process, amount: float) -> None:
        self._waiting.append((process, amount))
        if not self._at_work:
            self._begin()

    def _begin(self) -> None:
        self._at_work = True
        self._clock.after(self._delay_s, self._flush)

    def _flush(self) -> None:
        served, self._waiting = self._waiting, []
        written_s = sum(amount for _, amount in served)
        self.busy_s += written_s
        self._clock.after(self._flush_s + written_s, lambda: self._end(served))

    def _end(self, served: list[tuple[Process, float]]) -> None:
        self._at_work = False
        if self._waiting:
            self._begin()
        for process, _ in served:
            self._clock.resume(process)


class Store:
    """Messages between beat and the children: ``amount`` ids are taken, negative ones are put."""

    def __init__(self, clock: Clock, most: float) -> None:
        self._clock, self._most = clock, most
        self._ids = most
        self._takers: deque[tuple[Process, float]] = deque()
        self._putters: deque[tuple[Process, float]] = deque()

    def serve(self, process: Process, amount: float) -> None:
        (self._takers if amount > 0 else self._putters).append((process, abs(amount)))
        self._match()

    def _match(self) -> None:
        moved = True
        while moved:
            moved = False
            if self._putters and self._ids + self._putters[0][1] <= self._most:
                process, amount = self._putters.popleft()
                self._ids += amount
                moved = True
                self._clock.after(0, partial(self._clock.resume, process))
            if self._takers and self._takers[0][1] <= self._ids:
                process, amount = self._takers.popleft()
                self._ids -= amount
                moved = True
                self._clock.after(0, partial(self._clock.resume, process))
