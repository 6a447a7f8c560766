"""Two tiers of tests, by property.

The first (``make test``) needs no process beside the servers of the session and lets no time pass:
it waits for conditions only. All else runs in ``make test-all``: a test is of the second tier if
it, its class or its module has the mark ``test_all``, or if one of its fixtures is declared with
:func:`starts_processes`. A test of the first tier that starts a process or sleeps all the same
fails at once.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest

MARK = "test_all"
STARTS = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"}
)
"""Events of :func:`sys.addaudithook`."""
HERE = Path(__file__).parent
F = TypeVar("F", bound=Callable[..., Any])


def starts_processes(fixture: F) -> F:
    """Declare that whoever uses this fixture is of the second tier; stands below ``@fixture``."""
    fixture.starts_processes = True  # type: ignore[attr-defined]
    return fixture


def few(first: int, cases: Iterable[Any]) -> list[Any]:
    """Let so many of a table of cases be of the first tier; the others cost too much for it."""
    return [
        case if number < first else pytest.param(*_values(case), marks=getattr(pytest.mark, MARK))
        for number, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


def mark(items: Iterable[pytest.Item]) -> None:
    """Give the mark to each test with a fixture that starts processes."""
    for item in items:
        if is_first(item) and any(map(_starts, _fixtures_of(item))):
            item.add_marker(MARK)


def is_first(item: pytest.Item) -> bool:
    """Whether a test is of the first tier."""
    return item.get_closest_marker(MARK) is None


def _fixtures_of(item: pytest.Item) -> Iterator[Callable[..., Any]]:
    info = getattr(item, "_fixtureinfo", None)
    for definitions in info.name2fixturedefs.values() if info else ():
        yield definitions[-1].func


def _starts(fixture: Callable[..., Any]) -> bool:
    return getattr(fixture, "starts_processes", False)


def _is_ours(caller: FrameType) -> bool:
    """Whether a test sleeps, or a handler of one: the product may rest for a moment."""
    return caller.f_code.co_filename.startswith(str(HERE))


class _Guard:
    """Says what a test of the first tier does that it must not."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []

    def refuse(self, what: str) -> None:
        """Note it, since a product's ``except`` may hide what is raised here."""
        if self.on:
            self.seen.append(
                f"{what}, and tests of the first tier do not. Wait for a condition and pass the"
                f" time, or mark the test with @pytest.mark.{MARK} (tests/tiers.py)."
            )
            raise AssertionError(self.seen[-1])


_guard = _Guard()


def install() -> None:
    """Watch this process, for as long as it lives."""
    guard, starts = _guard, STARTS  # the hook outlives this module's names

    def audit(event: str, _: object) -> None:
        if guard.on and event in starts:
            guard.refuse(f"This test starts a process ({event})")

    sys.addaudithook(audit)
    slept, awaited = time.sleep, asyncio.sleep

    def sleep(seconds: float) -> None:
        if seconds > 0 and _is_ours(sys._getframe(1)):
            _guard.refuse("This test sleeps (time.sleep)")
        slept(seconds)

    def async_sleep(delay: float, result: Any = None) -> Awaitable[Any]:
        if delay > 0 and _is_ours(sys._getframe(1)):
            _guard.refuse("This test sleeps (asyncio.sleep)")
        return awaited(delay, result)

    time.sleep, asyncio.sleep = sleep, async_sleep


@contextmanager
def guarding(item: pytest.Item) -> Iterator[None]:
    """Let a test of the first tier fail if it starts a process or sleeps meanwhile."""
    before = _guard.on, _guard.seen
    _guard.on, _guard.seen = is_first(item), []
    try:
        yield
    finally:
        seen = _guard.seen
        _guard.on, _guard.seen = before
    if seen:
        pytest.fail(seen[0], pytrace=False)


@contextmanager
def servers_start() -> Iterator[None]:
    """Let the servers of the session be started meanwhile."""
    before, _guard.on = _guard.on, False
    try:
        yield
    finally:
        _guard.on = before
