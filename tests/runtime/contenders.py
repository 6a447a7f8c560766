"""Processes that take groups of locks at random, are killed, and leave a trace that is not ours.

Each appends lines to a file of its own, with the machine's monotonic clock, which all processes
share: ``ask`` before it asks, ``held`` when it holds, ``end`` before it releases, ``done`` after
it. What a line says has been true since, or until, the moment when it was written.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from tasks_app import locks
from tasks_app.domain.locks import LockDeniedError, LockMode, LockPart, lock_parts
from tests.factory import some

RESOURCES = 40
WAITS = (0, 0, "300ms", "20s", "20s", "20s")
HELD_FOR_S = 0.004


def contend(url: str, path: Path, seed: int, acquisitions: int, lease: str) -> None:
    """One process: so many groups, one after the other."""
    dice = random.Random(seed)
    engine = create_engine(url, pool_size=2)
    trace = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, number: int, **more: Any) -> None:
        text = json.dumps({"what": what, "number": number, "at": time.monotonic(), **more})
        os.write(trace, f"{text}\n".encode())

    for number in range(acquisitions):
        group, wait = _group(dice), dice.choice(WAITS)
        note("ask", number, parts=lock_parts(**group), wait=wait)
        try:
            with locks.hold(engine, **group, wait=wait, lease=lease, who=path.name):
                note("held", number)
                time.sleep(dice.expovariate(1 / HELD_FOR_S))
                note("end", number)
            note("done", number)
        except LockDeniedError as denial:
            note("denied", number, by=[o.resource for o in denial.obstacles])


def _group(dice: random.Random) -> dict[str, Any]:
    names = [f"r{n}" for n in dice.sample(range(RESOURCES), dice.choice((1, 1, 2, 2, 3, 5)))]
    group: dict[str, Any] = {"exclusive": [], "shared": [], "counted": {}}
    for name in names:
        match dice.choice(list(LockMode)):
            case LockMode.COUNTED:
                group["counted"][name] = 2
            case mode:
                group[mode].append(name)
    return group


@dataclass
class Tried:
    """One acquisition, as its process saw it; ``killed``: when that process was surely gone."""

    who: str
    parts: tuple[LockPart, ...]
    waits: bool
    asked: float
    held: float | None = None
    ended: float | None = None
    done: float | None = None
    denied: float | None = None
    killed: float | None = None
    by: list[str] = field(default_factory=list)

    @property
    def uncertain(self) -> bool:
        """Killed between its asking and an answer: it may have held, or waited."""
        return self.held is None and self.denied is None


def read(path: Path, killed: float | None) -> Iterator[Tried]:
    tried: Tried | None = None
    for text in path.read_text().splitlines():
        said = json.loads(text)
        at = said["at"]
        match said["what"]:
            case "ask":
                if tried:
                    yield tried
                parts = tuple(
                    LockPart(name, LockMode(mode), most) for name, mode, most in said["parts"]
                )
                tried = Tried(path.name, parts, bool(said["wait"]), at)
            case "held" if tried:
                tried.held = at
            case "end" if tried:
                tried.ended = at
            case "done" if tried:
                tried.done = at
            case "denied" if tried:
                tried.denied, tried.by = at, said["by"]
    if tried:
        if tried.done is None and tried.denied is None:
            tried.killed = killed
        yield tried


def violations(tries: list[Tried]) -> list[str]:
    """Return who held one resource at the same time and did not get along."""
    spans: dict[str, list[tuple[float, float, Tried, LockPart]]] = {}
    for tried in tries:
        if tried.held is not None:
            end = some(tried.ended or tried.killed)
            for part in tried.parts:
                spans.setdefault(part.resource, []).append((tried.held, end, tried, part))
    found = []
    for resource, all_spans in spans.items():
        open_ones: list[tuple[float, float, Tried, LockPart]] = []
        for span in sorted(all_spans, key=lambda s: s[0]):
            open_ones = [one for one in open_ones if one[1] > span[0]]
            modes = {one[3].mode for one in (*open_ones, span)}
            alone = modes == {LockMode.SHARED} or (
                modes == {LockMode.COUNTED} and len(open_ones) < (span[3].most or 0)
            )
            if open_ones and not alone:
                found.append(f"{resource} at {span[0]}: {span[2].who}, {open_ones}")
            open_ones.append(span)
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _, url, path, seed, acquisitions, lease = sys.argv
    contend(url, Path(path), int(seed), int(acquisitions), lease)
