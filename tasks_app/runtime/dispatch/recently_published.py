"""What the leader published lately: in its memory alone, and only to save work.

A message that is forgotten too early is published twice, and its copy claims nothing. One that is
remembered too long, because the broker lost it, keeps its tasks waiting for :data:`KEPT_S`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from tasks_app.runtime.publisher import Message

KEPT_S = 10.0
"""The longest that a message is remembered."""
IN_HAND_S = 1.0
"""What is no longer in its queue is remembered for that long: a child works its ids off."""


class RecentlyPublished:
    """The messages of one dispatcher."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._messages: defaultdict[str, deque[tuple[float, Sequence[int]]]] = defaultdict(deque)
        """By queue, oldest first, with the instants of :attr:`_clock`."""
        self._ids: defaultdict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
        """Each id's instant, and its row's ``scan_at``: a task that came back has another."""

    @property
    def queues(self) -> set[str]:
        """The queues of which something is remembered."""
        return {queue for queue, messages in self._messages.items() if messages}

    def remember(self, messages: Iterable[Message], scan_at: Mapping[int, float]) -> None:
        """Remember what the broker has taken; ``scan_at`` as their rows were read."""
        now = self._clock()
        for queue, ids in messages:
            self._messages[queue].append((now, ids))
            self._ids[queue].update((task_id, (now, scan_at[task_id])) for task_id in ids)

    def forget(self, queue: str, depth: int, threads: int) -> None:
        """Forget what is old, or can no longer be in the queue, which holds ``depth`` messages.

        The oldest leave it first.
        """
        messages, ids, now = self._messages[queue], self._ids[queue], self._clock()
        out = depth + threads if depth else 0
        while messages:
            at, oldest = messages[0]
            if now - at < (KEPT_S if len(messages) <= out else IN_HAND_S):
                break
            messages.popleft()
            for task_id in oldest:
                if task_id in ids and ids[task_id][0] == at:
                    del ids[task_id]

    def forget_all(self) -> None:
        """Forget everything: the broker refused something, and may have lost the rest."""
        self._messages.clear()
        self._ids.clear()

    def of(self, queue: str) -> dict[int, float]:
        """Return the ids that are under way, with the ``scan_at`` of their rows."""
        return {task_id: scan_at for task_id, (_, scan_at) in self._ids[queue].items()}

    def hides(self, queue: str, task_id: int, scan_at: float) -> bool:
        """Whether the row is under way as it is."""
        known = self._ids[queue].get(task_id)
        return known is not None and known[1] == scan_at

    def number(self, queue: str) -> int:
        """Return how many ids of the queue are remembered."""
        return len(self._ids[queue])
