"""Waiting for a lock: ask, ask again when woken or after a look, and withdraw the request."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from itertools import chain, repeat
from typing import Protocol, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.locks import Ask
from tasks_app.domain.locks import Granted
from tasks_app.domain.locks import LockDeniedError
from tasks_app.domain.locks import Obstacle
from tasks_app.pool.locks.acquire import WAIT_LEASE, acquire, acquire_at_once, is_hindered, open_up
from tasks_app.pool.locks.renew import give_up, release_now, renew
from tasks_app.pool.locks.wake import wake
from tasks_app.runtime.db.errors import sqlstate
from tasks_app.runtime.locks.wake_ups import wake_ups_of

FIRST_LOOKS_S, LOOK_EVERY_S = (0.05, 0.1, 0.2, 0.3), 0.4
"""The first looks, and the interval of those after them; each is one read, which locks nothing."""
LOCK_NOT_AVAILABLE = "55P03"
MEANWHILE = (LOCK_NOT_AVAILABLE, "40001")
"""The second where the role's transactions are stricter than READ COMMITTED."""
SHORT_TRIES = 3
"""By one statement, which is in vain where somebody else has decided meanwhile."""
MOST_TRIES = 20
"""Each waits a second for the row lock (``lock_timeout``)."""
T = TypeVar("T")
nap = time.sleep


class Transacts(Protocol):
    """Opens our own transactions."""

    @property
    def engine(self) -> Engine: ...

    def begin(self) -> AbstractContextManager[Connection]:
        """Open one that commits at the end of the block."""
        ...

    def single(self) -> AbstractContextManager[Connection]:
        """Open a connection for one statement, which commits by itself."""
        ...


def take(
    database: Transacts,
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
        answer = _ask(database, ask, waits=wait_s > 0)
        if wait_s > 0 and not isinstance(answer, Granted):
            answer = _stand(database, ask, began + wait_s, answer, place_lease, naps or pauses())
        if isinstance(answer, Granted):
            return answer
        if wait_s > 0:
            patiently(database, lambda single: give_up(single, ask.token))
    except BaseException:  # a time limit, say, or a COMMIT that was not answered
        with suppress(Exception):
            patiently(database, lambda single: release_now(single, ask.token))
            wake_next(database, ask.resources)
        raise
    if wait_s > 0:
        wake_next(database, ask.resources)
    after = timedelta(seconds=snooze_s * random.uniform(0.75, 1.25))  # noqa: S311  no secret
    raise LockDeniedError(answer, time.monotonic() - began if wait_s else 0.0, after)


def _stand(
    database: Transacts,
    ask: Ask,
    ends: float,
    answer: tuple[Obstacle, ...],
    place_lease: timedelta,
    naps: Iterator[float],
) -> Granted | tuple[Obstacle, ...]:
    """Stand in line: look at once, since a release meanwhile told nobody, then when woken."""
    renew_every_s = place_lease.total_seconds() / 3
    renew_at = time.monotonic() + renew_every_s
    wake_ups = wake_ups_of(database.engine)
    told = False
    with wake_ups.expected(database.engine, ask.token) as woken:  # before the look
        while True:
            passed_by = False
            if time.monotonic() >= renew_at:
                with database.begin() as connection:
                    passed_by = bool(renew(connection, [ask.token], place_lease))
                renew_at = time.monotonic() + renew_every_s
            if told or passed_by or not answer or not _is_hindered(database, ask):
                found = _ask(database, ask, waits=True)
                if isinstance(found, Granted):
                    return found
                answer = found
            left = ends - time.monotonic()
            if left <= 0:
                return answer
            nap_s = next(naps)
            told = woken.wait(min(left, max(nap_s, LOOK_EVERY_S) if wake_ups.hears else nap_s))
            woken.clear()


def _is_hindered(database: Transacts, ask: Ask) -> bool:
    with database.single() as connection:
        return is_hindered(connection, ask)


def wake_next(database: Transacts, resources: Sequence[str]) -> None:
    """Tell the next in line, after the commit that freed the resources.

    If that fails they look by themselves, and what was released is released.
    """
    with suppress(DBAPIError), database.single() as connection:
        wake(connection, resources)


def _ask(database: Transacts, ask: Ask, *, waits: bool) -> Granted | tuple[Obstacle, ...]:
    """Ask once; rows of new resources are inserted on the way."""
    try:
        answer, tries = None, 0
        while answer is None and tries < SHORT_TRIES:
            answer, tries = _ask_at_once(database, ask, waits=waits), tries + 1
        while answer is None:
            with database.begin() as connection:
                answer = acquire(connection, ask, waits=waits)
            if answer is None:
                with database.begin() as connection:
                    open_up(connection, ask)
        return answer
    except DBAPIError as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        return ()


def _ask_at_once(
    database: Transacts, ask: Ask, *, waits: bool
) -> Granted | tuple[Obstacle, ...] | None:
    try:
        with database.single() as connection:
            return acquire_at_once(connection, ask, waits=waits)
    except DBAPIError as error:
        if sqlstate(error) not in MEANWHILE:
            raise
        return None


def patiently(database: Transacts, verb: Callable[[Connection], T]) -> T:
    """Call a verb of a single statement, and again while its row is locked.

    The row is locked by a renewal or a take-over whose process stands still for a moment;
    PostgreSQL ends that transaction if the moment is too long.
    """
    tries = 0
    while True:
        tries += 1
        try:
            with database.single() as connection:
                return verb(connection)
        except DBAPIError as error:
            if sqlstate(error) not in MEANWHILE or tries == MOST_TRIES:
                raise


def pauses() -> Iterator[float]:
    """Yield the seconds between two looks, with jitter so that waiters do not look in step."""
    for pause in chain(FIRST_LOOKS_S, repeat(LOOK_EVERY_S)):
        yield pause * random.uniform(0.75, 1.25)  # noqa: S311  no secret
