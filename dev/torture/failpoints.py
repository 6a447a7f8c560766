"""Failpoints: at named places a process dies, fails, stalls or is cut off, now and then.

``TORTURE_FAILPOINTS="claim.committed=kill@0.01; settle.before=sleep:2@0.05"``: with a chance for
each time that the place is passed. ``TORTURE_SEED`` fixes the draws of each process. What was done
is written down before it is done, one line each, in the folder ``TORTURE_FOLDER``. When a file
``calm`` appears there, nothing happens any more.
"""

from __future__ import annotations

import ctypes
import functools
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.torture.points import AFTER, PLACES, place

HITS, CALM = "hits", "calm"


class Injected(Exception):  # noqa: N818  an outcome, as the product's own are
    """What the action ``raise`` raises."""


@dataclass(frozen=True, slots=True)
class Failpoint:
    """One thing that may happen at one place."""

    point: str
    action: str
    argument: float
    chance: float

    @property
    def written(self) -> str:
        return f"{self.point}={self.action}:{self.argument:g}@{self.chance:g}"

    def __str__(self) -> str:
        return f"{self.point} {self.action}"


def read(text: str) -> list[Failpoint]:
    """Read ``point=action[:argument][@chance]``, separated by semicolons.

    Raises:
        ValueError: there is no such point or action, or a number is none.
    """
    found = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        point, _, rest = part.partition("=")
        what, _, chance = rest.partition("@")
        action, _, argument = what.partition(":")
        if point not in PLACES or action not in ACTIONS:
            raise ValueError(f"No failpoint {part}. Points: {', '.join(PLACES)}.")
        found.append(Failpoint(point, action, float(argument or 0), float(chance or 1)))
    return found


def set_up(environment: dict[str, str] | os._Environ[str] = os.environ) -> list[Failpoint]:
    """Install the failpoints that the environment names."""
    failpoints = read(environment.get("TORTURE_FAILPOINTS", ""))
    folder = Path(environment.get("TORTURE_FOLDER", "."))
    seed = environment.get("TORTURE_SEED", "0")
    for failpoint in failpoints:
        install(failpoint, Dice(seed), folder)
    return failpoints


class Dice:
    """Draws of one process; a forked one draws anew."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._pid = 0
        self._rng = random.Random()

    def falls(self, chance: float) -> bool:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._rng = random.Random(f"{self._seed} {self._pid}")
        return self._rng.random() < chance


def install(failpoint: Failpoint, dice: Dice, folder: Path) -> Callable[[], None]:
    """Put one failpoint at its place; call what is returned to take it away."""
    at = place(failpoint.point)
    call = at.call

    def hurt() -> None:
        if dice.falls(failpoint.chance) and not (folder / CALM).exists():
            with (folder / HITS).open("a") as file:
                file.write(f"{failpoint}\n")
            ACTIONS[failpoint.action](failpoint.argument)

    @functools.wraps(call)
    def hurting(*arguments: Any, **options: Any) -> Any:
        if failpoint.point not in AFTER:
            hurt()
        answer = call(*arguments, **options)
        if failpoint.point in AFTER:
            hurt()
        return answer

    setattr(at.owner, at.attribute, hurting)
    return lambda: setattr(at.owner, at.attribute, call)


def hits(path: Path) -> Counter[str]:
    """Count what was done, by point and action."""
    return Counter(path.read_text().splitlines()) if path.exists() else Counter()


def _kill(_: float) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exit(status: float) -> None:
    os._exit(int(status or 1))


def _raise(_: float) -> None:
    raise Injected("a failpoint")


def _hog(seconds: float) -> None:
    """Hold the interpreter's lock: no other thread of this process runs meanwhile."""
    ctypes.PyDLL(None).sleep(int(seconds))


def _stop(_: float) -> None:
    """Until somebody sends SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def _cut(_: float) -> None:
    """All TCP connections of this process end, as if a firewall had reset them."""
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        try:
            with socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
                if connection.family in {socket.AF_INET, socket.AF_INET6}:
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is no socket, or not connected
            continue


ACTIONS: dict[str, Callable[[float], None]] = {
    "kill": _kill,
    "exit": _exit,
    "raise": _raise,
    "sleep": time.sleep,
    "hog": _hog,
    "stop": _stop,
    "cut": _cut,
}
