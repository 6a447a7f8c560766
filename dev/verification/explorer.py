"""Visit every state that a model can reach, shortest way first.

The explorer knows nothing about tasks. It is given a model, which says where the world
starts, which steps lead on from a world, which promise a step breaks, and where the walk is
over. It answers three questions:

* Does any step break a promise? If so it shows a shortest way there.
* Can the world always still end well? From every state there must be a way to a finished
  state on which nothing else goes wrong: the system heals by itself, with no new fault and no
  human hand. (Temporal logic writes this AG EF finished, the EF over fault-free steps only.)
* How many states and steps were there, so that a reader can judge what "every" means?
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Iterator
from itertools import pairwise
from typing import Generic, NamedTuple, Protocol, TypeVar

W = TypeVar("W", bound=Hashable)

STATE_LIMIT = 1_500_000
LOOK_ON = 200
"""So many states beyond a trap are looked at, to show what becomes of it."""


class Step(NamedTuple, Generic[W]):
    """One thing that can happen next."""

    what: str
    is_fault: bool
    after: W


def progress(what: str, after: W) -> Step[W]:
    """A step that a healthy system takes by itself."""
    return Step(what, is_fault=False, after=after)


def fault(what: str, after: W) -> Step[W]:
    """A step that may not happen: a failure, an operator's action, an unlucky moment."""
    return Step(what, is_fault=True, after=after)


class Model(Protocol[W]):
    """The interface of a model."""

    def initial(self) -> W:
        """The world before anything happened."""

    def steps(self, world: W) -> Iterator[Step[W]]:
        """Everything that can happen next."""

    def broken_promise(self, before: W, step: Step[W]) -> str | None:
        """Which promise this step breaks, in words; None if it breaks none."""

    def finished(self, world: W) -> bool:
        """Whether the walk is over for good."""

    def picture(self, world: W) -> str:
        """The world in one line, for a person."""


class Moment(NamedTuple):
    """One line of a counter-example."""

    what: str
    is_fault: bool
    picture: str


class Verdict(NamedTuple):
    """The result of a visit of all states."""

    states: int
    edges: int
    seconds: float
    complaint: str | None
    trace: tuple[Moment, ...]


class Explorer(Generic[W]):
    """Breadth-first search over the worlds of one model."""

    def __init__(self, model: Model[W], limit: int = STATE_LIMIT) -> None:
        self._model = model
        self._limit = limit
        self._number: dict[W, int] = {}
        self._worlds: list[W] = []
        self._came_from: list[int] = []
        self._healthy_ways_into: list[list[int]] = []
        self._edges = 0

    def explore(self) -> Verdict:
        started = time.perf_counter()
        complaint, trace = self._search()
        if complaint is None:
            complaint, trace = self._look_for_a_trap()
        seconds = time.perf_counter() - started
        return Verdict(len(self._worlds), self._edges, seconds, complaint, trace)

    def _meet(self, world: W, came_from: int) -> int:
        """Return the world's number; a new world joins the list of worlds to visit."""
        number = self._number.get(world)
        if number is None:
            number = self._number[world] = len(self._worlds)
            self._worlds.append(world)
            self._came_from.append(came_from)
            self._healthy_ways_into.append([])
        return number

    def _search(self) -> tuple[str | None, tuple[Moment, ...]]:
        model, worlds = self._model, self._worlds
        self._meet(model.initial(), -1)
        here = 0
        while here < len(worlds):
            world = worlds[here]
            for step in model.steps(world):
                self._edges += 1
                complaint = model.broken_promise(world, step)
                if complaint is not None:
                    return complaint, (*self._trace_to(here), self._moment(step))
                there = self._meet(step.after, here)
                if not step.is_fault and there != here:
                    self._healthy_ways_into[there].append(here)
            if len(worlds) > self._limit:
                return f"more than {self._limit} states: nothing is proved", ()
            here += 1
        return None, ()

    def _look_for_a_trap(self) -> tuple[str | None, tuple[Moment, ...]]:
        """Walk backwards from the finished worlds over healthy steps; the rest is a trap."""
        can_end = [self._model.finished(world) for world in self._worlds]
        backwards = deque(number for number, ends in enumerate(can_end) if ends)
        while backwards:
            for before in self._healthy_ways_into[backwards.popleft()]:
                if not can_end[before]:
                    can_end[before] = True
                    backwards.append(before)
        trapped = can_end.count(False)
        if not trapped:
            return None, ()
        nearest = can_end.index(False)  # numbers rise with the distance from the start
        trace = self._trace_to(nearest)
        complaint = f"P2: stuck from step {len(trace)} on ({trapped} states know no way out)"
        return complaint, (*trace, *self._what_becomes_of(nearest))

    def _what_becomes_of(self, trap: int) -> tuple[Moment, ...]:
        """How it continues without faults until nothing new can happen, for the reader."""
        ways = self._healthy_ways_from(self._worlds[trap])
        if len(ways) > LOOK_ON:
            return ()
        newest = {world: len(self._healthy_ways_from(world)) for world in ways}
        fewest = min(newest.values())
        last = [way for world, way in ways.items() if newest[world] == fewest]
        return last[0] if fewest == 1 else last[-1]  # a dead end; or once around the circle

    def _healthy_ways_from(self, start: W) -> dict[W, tuple[Moment, ...]]:
        """Every world that healthy steps lead to, and a shortest way there."""
        ways: dict[W, tuple[Moment, ...]] = {start: ()}
        queue = deque([start])
        while queue and len(ways) <= LOOK_ON:
            here = queue.popleft()
            for step in self._model.steps(here):
                if not step.is_fault and step.after not in ways:
                    ways[step.after] = (*ways[here], self._moment(step))
                    queue.append(step.after)
        return ways

    def _trace_to(self, number: int) -> tuple[Moment, ...]:
        way = [number]
        while self._came_from[way[-1]] >= 0:
            way.append(self._came_from[way[-1]])
        way.reverse()
        return tuple(self._moment(self._step_between(*pair)) for pair in pairwise(way))

    def _step_between(self, here: int, there: int) -> Step[W]:
        after = self._worlds[there]
        return next(step for step in self._model.steps(self._worlds[here]) if step.after == after)

    def _moment(self, step: Step[W]) -> Moment:
        return Moment(step.what, step.is_fault, self._model.picture(step.after))


def explore(model: Model[W], limit: int = STATE_LIMIT) -> Verdict:
    return Explorer(model, limit).explore()
