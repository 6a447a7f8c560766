"""Passing on: what reached a worker without its handler goes to another worker of the queue.

Two services may serve one queue with different handlers, as two versions do during a deployment.
The broker hands a message to any of them. A worker that cannot use it puts a hint into the queue
again. It most likely reaches another worker, which has waited longer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.pool.dispatch.elsewhere import known_elsewhere, of_others
from tasks_app.runtime.hints import HINTS
from tasks_app.runtime.hints.sender import Hint
from tasks_app.runtime.inflight.parts import ChildParts

REMEMBERED_S = 5.0
"""How long it remembers which names others know, and what it passed on."""
WAITS_S = (0.0, 0.05, 0.2, 0.8)
"""How long an id rests before it is passed on, each time that it comes back: the workers that know
it are busy. In the end the scan finds it."""
MOST_REMEMBERED = 10_000


class PassingOn:
    """One child's; it remembers for a few seconds what it passed on."""

    def __init__(self, parts: ChildParts) -> None:
        self._lease = parts.settings.lease
        self._database = parts.database
        self._identity = parts.identity
        self._names: set[str] = set()
        self._forget_at = 0.0
        self._times: dict[int, int] = {}

    def look(self, ids: Sequence[int]) -> None:
        """Pass on those of a message's ids that only others know. Raises nothing.

        Usually all workers know the same; then it only asks who lives, and rarely.
        """
        try:
            names = self._known_elsewhere()
            if names:
                with self._database.single() as connection:
                    found = of_others(connection, ids, names)
                self._pass_on(found)
        except SQLAlchemyError:
            return

    def _known_elsewhere(self) -> set[str]:
        now = time.monotonic()
        if now >= self._forget_at:
            with self._database.single() as connection:
                own = self._identity
                self._names = known_elsewhere(connection, own.queues, own.handlers, self._lease)
            self._forget_at = now + REMEMBERED_S
            self._times.clear()
        return self._names

    def _pass_on(self, found: Sequence[tuple[str, int]]) -> None:
        if len(self._times) >= MOST_REMEMBERED:
            self._times.clear()
        now = time.monotonic()
        again: list[Hint] = []
        for queue, task_id in found:
            times = self._times.get(task_id, 0)
            self._times[task_id] = times + 1
            if times < len(WAITS_S):
                again.append(Hint(queue, task_id, now + WAITS_S[times]))
        HINTS.offer(again)
