"""The claims of a child that have not started, and the messages that its threads carry out."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from math import inf

from tasks_app.domain.tasks.run import ClaimedTask, Fence

LONE_WAIT = timedelta(seconds=5)
"""How long a task that runs alone stays away from a child that always runs others."""
MOST_TURNED_AWAY = 3
"""Then the child starts nothing more until that task has had its turn."""
MOST_REMEMBERED = 1_000


class WaitingClaims:
    """Two queues: one for threads, one for the event loop."""

    def __init__(self, for_async_pool: Callable[[str], bool]) -> None:
        self._for_async_pool = for_async_pool
        self.plain: deque[ClaimedTask] = deque()
        self.asynchronous: deque[ClaimedTask] = deque()
        self._held_until: dict[Fence, float] = {}
        """When the lease of each may be over, by ``time.monotonic``."""
        self._turned_away: dict[int, int] = {}
        """How often each task that runs alone was sent away."""

    def __len__(self) -> int:
        return len(self.plain) + len(self.asynchronous)

    def __iter__(self) -> Iterator[ClaimedTask]:
        yield from self.plain
        yield from self.asynchronous

    def add(self, tasks: Sequence[ClaimedTask], held_until: float) -> None:
        for task in tasks:
            self._queue_of(task).append(task)
            self._held_until[task[0]] = held_until

    def take_plain(
        self, suits: Callable[[ClaimedTask], bool] | None, *, alone: bool
    ) -> ClaimedTask | None:
        """Take the first that suits; ``alone``: nothing runs, so that a lone one may start."""
        for task in self.plain:
            if (alone or not task.runs_alone) and (suits is None or suits(task)):
                self.plain.remove(task)
                return task
        return None

    def take_async(self, most: int, *, alone: bool) -> list[ClaimedTask]:
        chosen = [task for task in self.asynchronous if not task.runs_alone][:most]
        if not chosen and alone and self.asynchronous:
            chosen = [self.asynchronous[0]]
        if chosen:
            fences = {task.fence for task in chosen}
            self.asynchronous = deque(t for t in self.asynchronous if t.fence not in fences)
        return chosen

    def take_all(self) -> list[ClaimedTask]:
        tasks = list(self)
        self.plain.clear()
        self.asynchronous.clear()
        self._held_until.clear()
        return tasks

    def take_named(self, names: Collection[str]) -> list[ClaimedTask]:
        taken = [task for task in self if task.name in names]
        for task in taken:
            self._queue_of(task).remove(task)
            self._held_until.pop(task.fence, None)
        return taken

    def take_turned_away(self) -> list[ClaimedTask]:
        """Take those that run alone, to be sent away: other children may be free.

        One that was sent away often stays, and has its turn here.
        """
        away = []
        for task in [task for task in self if task.runs_alone]:
            times = self._turned_away.get(task.task_id, 0)
            if times < MOST_TURNED_AWAY:
                if len(self._turned_away) >= MOST_REMEMBERED:
                    self._turned_away.clear()
                self._turned_away[task.task_id] = times + 1
                self._queue_of(task).remove(task)
                self._held_until.pop(task.fence, None)
                away.append(task)
        return away

    def started(self, task: ClaimedTask) -> float:
        """Forget one that was taken to be started; return until when its lease is held."""
        if task.runs_alone:
            self._turned_away.pop(task.task_id, None)
        return self._held_until.pop(task[0], inf)

    def renewed(self, task_ids: Collection[int], held_until: float) -> None:
        for fence, known in self._held_until.items():
            if fence.task_id in task_ids:
                self._held_until[fence] = max(known, held_until)

    def _queue_of(self, task: ClaimedTask) -> deque[ClaimedTask]:
        return self.asynchronous if self._for_async_pool(task.name) else self.plain


class OpenMessages:
    """Part of the in-flight set, under its mutex; only :attr:`gave_back` is asked without it."""

    def __init__(self) -> None:
        self._threads: set[int] = set()
        self._gave_back: set[int] = set()
        """Threads the rest of whose message went back."""
        self._idle_since = time.monotonic()

    def __len__(self) -> int:
        return len(self._threads)

    def open(self) -> None:
        self._threads.add(threading.get_ident())
        self._gave_back.discard(threading.get_ident())

    def close(self) -> None:
        self._threads.discard(threading.get_ident())
        self._idle_since = time.monotonic()

    def idle_s(self) -> float:
        return 0.0 if self._threads else time.monotonic() - self._idle_since

    @property
    def gave_back(self) -> bool:
        """Whether the rest of this thread's message went back."""
        return threading.get_ident() in self._gave_back

    def give_back(self) -> None:
        """Leave what is not claimed yet of all messages to the next scan."""
        self._gave_back |= self._threads
