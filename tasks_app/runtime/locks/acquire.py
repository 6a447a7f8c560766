"""Waiting for a lock: ask, ask again when woken or after a look, and withdraw the request."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import timedelta
from itertools import chain, repeat
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.coordination.locks import Ask, Granted, LockDeniedError, Obstacle
from tasks_app.pool.locks.acquire import WAIT_LEASE, acquire, is_hindered, open_up
from tasks_app.pool.locks.renew import give_up, release, renew
from tasks_app.pool.locks.wake import wake
from tasks_app.runtime.db.errors import sqlstate
from tasks_app.runtime.locks.wake_ups import wake_ups_of

FIRST_LOOKS_S, LOOK_EVERY_S = (0.05, 0.1, 0.2, 0.3), 0.4
"""The first looks, and the interval of those after them; each is one read, which locks nothing."""
LOCK_NOT_AVAILABLE = "55P03"
MOST_TRIES = 20
"""Each waits a second for the row lock (``lock_timeout``)."""
T = TypeVar("T")
nap = time.sleep


def take(
    begin: Callable[[], AbstractContextManager[Connection]],
    ask: Ask,
    wait_s: float,
    snooze_s: float,
    *,
    place_lease: timedelta = WAIT_LEASE,
    naps: Iterator[float] | None = None,
) -> Granted:
    """Return when the group is held.

    Raises:
        LockDeniedError: it was not free in time; nothing is held then.
    """
    began = time.monotonic()
    try:
        answer = _ask(begin, ask, waits=wait_s > 0)
        if wait_s > 0 and not isinstance(answer, Granted):
            answer = _stand(begin, ask, began + wait_s, answer, place_lease, naps or pauses())
        if isinstance(answer, Granted):
            return answer
        if wait_s > 0:
            patiently(begin, lambda connection: give_up(connection, ask.token))
    except BaseException:  # a time limit, say, or a COMMIT that was not answered
        with suppress(Exception):
            patiently(begin, lambda connection: release(connection, ask.token))
            wake_next(begin, ask.resources)
        raise
    if wait_s > 0:
        wake_next(begin, ask.resources)
    after = timedelta(seconds=snooze_s * random.uniform(0.75, 1.25))  # noqa: S311  no secret
    raise LockDeniedError(answer, time.monotonic() - began if wait_s else 0.0, after)


def _stand(
    begin: Callable[[], AbstractContextManager[Connection]],
    ask: Ask,
    ends: float,
    answer: tuple[Obstacle, ...],
    place_lease: timedelta,
    naps: Iterator[float],
) -> Granted | tuple[Obstacle, ...]:
    """Stand in line: look at once, since a release meanwhile told nobody, then when woken."""
    renew_every_s = place_lease.total_seconds() / 3
    renew_at = time.monotonic() + renew_every_s
    with ExitStack() as leaving:
        woken: threading.Event | None = None
        told = False
        while True:
            hindered = False
            if not told:
                with begin() as connection:
                    if woken is None:  # before the look, or a release between both is missed
                        engine = connection.engine
                        woken = leaving.enter_context(
                            wake_ups_of(engine).expected(engine, ask.token)
                        )
                    passed_by = False
                    if time.monotonic() >= renew_at:
                        passed_by = bool(renew(connection, [ask.token], place_lease))
                        renew_at = time.monotonic() + renew_every_s
                    hindered = bool(answer) and not passed_by and is_hindered(connection, ask)
            if not hindered:
                found = _ask(begin, ask, waits=True)
                if isinstance(found, Granted):
                    return found
                answer = found
            left = ends - time.monotonic()
            if left <= 0:
                return answer
            assert woken is not None  # noqa: S101  the first round was not told
            told = woken.wait(min(left, next(naps)))
            woken.clear()


def wake_next(
    begin: Callable[[], AbstractContextManager[Connection]], resources: Sequence[str]
) -> None:
    """Tell the next in line, after the commit that freed the resources.

    If that fails they look by themselves, and what was released is released.
    """
    with suppress(DBAPIError), begin() as connection:
        wake(connection, resources)


def _ask(
    begin: Callable[[], AbstractContextManager[Connection]], ask: Ask, *, waits: bool
) -> Granted | tuple[Obstacle, ...]:
    """Ask once; rows of new resources are inserted on the way."""
    try:
        while True:
            with begin() as connection:
                answer = acquire(connection, ask, waits=waits)
            if answer is not None:
                return answer
            with begin() as connection:
                open_up(connection, ask)
    except DBAPIError as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        return ()


def patiently(
    begin: Callable[[], AbstractContextManager[Connection]], verb: Callable[[Connection], T]
) -> T:
    """Call a verb in a transaction of its own, and again while its row is locked.

    The row is locked by a renewal or a take-over whose process stands still for a moment;
    PostgreSQL ends that transaction if the moment is too long.
    """
    tries = 0
    while True:
        tries += 1
        try:
            with begin() as connection:
                return verb(connection)
        except DBAPIError as error:
            if sqlstate(error) != LOCK_NOT_AVAILABLE or tries == MOST_TRIES:
                raise


def pauses() -> Iterator[float]:
    """Yield the seconds between two looks, with jitter so that waiters do not look in step."""
    for pause in chain(FIRST_LOOKS_S, repeat(LOOK_EVERY_S)):
        yield pause * random.uniform(0.75, 1.25)  # noqa: S311  no secret
