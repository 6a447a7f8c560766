"""What was read is kept for a moment, and what takes long is made anew while others look on."""

from __future__ import annotations

import threading
import time

import pytest

from tasks_app.dashboard.reader import PageReader
from tests.waiting import until


@pytest.mark.test_all
def test_nobody_waits_for_what_is_a_little_old() -> None:
    reader, made, go = PageReader("postgresql+psycopg://nowhere"), [0], threading.Event()

    def make() -> int:
        made[0] += 1
        if made[0] > 1:
            go.wait(10)
        return made[0]

    assert reader.kept_or_stale("key", make, 1.0) == 1
    until(lambda: reader.kept_or_stale("key", make, 1.0) == 1 and made[0] == 2)
    assert reader.kept_or_stale("key", make, 1.0) == 1
    go.set()
    until(lambda: reader.kept_or_stale("key", make, 1.0) == 2)


def test_a_failure_behind_the_scenes_is_heard_of_by_the_next() -> None:
    reader, fails = PageReader("postgresql+psycopg://nowhere"), [False]

    def make() -> int:
        if fails[0]:
            raise LookupError("gone")
        return 1

    assert reader.kept_or_stale("key", make, 0.5) == 1
    fails[0] = True

    def heard() -> bool:
        try:
            reader.kept_or_stale("key", make, 0.5)
        except LookupError:
            return True
        return False

    until(heard)


def test_what_is_too_old_is_made_at_once() -> None:
    reader, made = PageReader("postgresql+psycopg://nowhere"), iter((1, 2))
    assert reader.kept_or_stale("key", lambda: next(made), 0.0) == 1
    assert reader.kept_or_stale("key", lambda: next(made), 0.0) == 2


@pytest.mark.test_all
def test_what_takes_long_is_kept_the_longer() -> None:
    reader, made = PageReader("postgresql+psycopg://nowhere"), iter((1, 2, 3))

    def slow() -> int:
        until(lambda: time.monotonic() > began + 0.02)
        return next(made)

    began = time.monotonic()
    assert reader.kept("key", slow, 0.0, 1_000) == 1
    assert reader.kept("key", slow, 0.0, 1_000) == 1
    assert reader.kept("key", slow, 0.0) == 2
