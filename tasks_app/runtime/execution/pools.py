"""Where handlers run beside the main thread: an event loop for async ones, and more threads."""

from __future__ import annotations

import asyncio
import threading
import time
from asyncio.tasks import _unregister_task
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

from sqlalchemy.util import greenlet_spawn

from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.runtime.execution.in_flight import InFlight
from tasks_app.runtime.handlers.checkpoint import ActiveRun

log = quiet_logger(__name__)
BLOCKED_S = 0.5  # how long one handler may block the loop before that is logged
T = TypeVar("T")


def unlisted(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Begin a task that ``asyncio.all_tasks()`` does not name: a handler may cancel all of those.

    No task factory of a handler's makes it. asyncio documents the function for whoever extends it.
    """
    task = asyncio.Task(work, name=name)
    _unregister_task(task)
    return task


class AsyncPool:
    """Runs up to ``places`` handlers at a time. The loop is made for the first of them."""

    def __init__(
        self,
        places: int,
        carry_out: Callable[[ActiveRun], None],
        leave: Callable[[ActiveRun], None],
        at_end: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._places = places
        self._carry_out = carry_out
        self._leave = leave
        self._at_end = at_end
        lock = threading.Lock()
        self._room = threading.Condition(lock)
        self._end_of_all = threading.Condition(lock)
        self._running = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: dict[asyncio.Task[None], ActiveRun] = {}
        self._asked_at: float | None = None
        self._warned: set[str] = set()

    @property
    def free(self) -> int:
        return self._places - self._running

    @property
    def share(self) -> int:
        """How many free places are worth a claim."""
        return max(1, self._places // 10)

    @property
    def busy(self) -> bool:
        return self._running > 0

    def start(self, runs: Sequence[ActiveRun]) -> None:
        if not runs:
            return
        try:
            with self._room:
                loop = self._loop or self._begin()
                loop.call_soon_threadsafe(self._spawn, runs)
                self._running += len(runs)
        except BaseException:  # no thread for the loop, say
            for run in runs:
                self._leave(run)
            raise

    def await_room(self, wanted: int, patience_s: float) -> int:
        """Wait until ``wanted`` places are free or nothing runs; return how many are free."""
        with self._room:
            self._room.wait_for(
                lambda: self._places - self._running >= wanted or not self._running, patience_s
            )
            return self.free

    def await_end(self, patience_s: float) -> None:
        with self._end_of_all:
            self._end_of_all.wait_for(lambda: not self._running, patience_s)

    def coroutines(self) -> list[tuple[asyncio.Task[Any], ActiveRun | None]]:
        """Return the tasks of the event loop: those of runs, then those that handlers began."""
        loop = self._loop
        if loop is None:
            return []
        begun = asyncio.all_tasks(loop)
        return [*self._tasks.copy().items(), *((task, None) for task in begun)]

    def warn_if_blocked(self) -> None:
        """Log, once per name, which handler blocks the event loop. The housekeeper calls it."""
        loop = self._loop
        if loop is None or not self._running:
            self._asked_at = None
        elif self._asked_at is None:
            self._asked_at = time.monotonic()
            loop.call_soon_threadsafe(setattr, self, "_asked_at", None)
        elif (blocked_s := time.monotonic() - self._asked_at) >= BLOCKED_S:
            task = asyncio.current_task(loop)
            name = "?" if task is None else task.get_name()
            if task is not None and name not in self._warned:
                self._warned.add(name)
                log.warning(
                    "handler %s has kept the event loop from all others for %.1f s; "
                    "let it await, or declare it as a plain function",
                    name,
                    blocked_s,
                )

    def close(self, patience_s: float) -> None:
        """End the loop; what it still runs stays unfinished."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = self._thread = None
        ended = asyncio.run_coroutine_threadsafe(self._at_end(), loop)
        ended.add_done_callback(lambda _: loop.call_soon_threadsafe(type(loop).stop, loop))
        thread.join(patience_s)

    def _begin(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        # A handler's: the others still run.
        loop.stop = loop.shutdown_default_executor = _refuse  # type: ignore[method-assign]
        thread = threading.Thread(
            target=self._turn, args=(loop,), name="tasks_app async pool", daemon=True
        )
        self._loop, self._thread = loop, thread
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._loop = self._thread = None
            raise
        return loop

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while self._loop is loop:
            try:
                loop.run_forever()
            except BaseException as error:  # a handler's own task raised SystemExit, say
                log.error("the event loop goes on after %s", type(error).__name__)  # noqa: TRY400
        loop.close()

    def _spawn(self, runs: Sequence[ActiveRun]) -> None:
        for run in runs:
            task = unlisted(greenlet_spawn(self._carry_out, run), run.task.name)
            self._tasks[task] = run  # first: the housekeeper may ask at any moment
            for each in (run, *run.others):
                each.in_loop = partial(self._tasks.__contains__, task)
            task.add_done_callback(partial(self._over, run))

    def _over(self, run: ActiveRun, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a run ended by an internal error: %s", type(error).__name__)
        self._leave(run)  # it may not even have begun
        with self._room:
            self._running -= 1
            self._room.notify_all()
            if not self._running:
                self._end_of_all.notify_all()


def _refuse(*_: object) -> NoReturn:
    raise RuntimeError(
        "The event loop and its executor are shared by all async handlers; none may stop them."
    )


THREAD_PATIENCE_S = 0.5  # between two looks at the in-flight set without being called
THREAD_POLL_S = 0.05
"""The same, when something waits: it may have come between our look and our wait."""


class ThreadPool:
    """Threads that start with the first call and end when the in-flight set stops."""

    def __init__(
        self,
        number: int,
        inflight: InFlight,
        suits: Callable[[ClaimedTask], bool],
        carry_out: Callable[[ActiveRun], None],
    ) -> None:
        self.number = number
        self._inflight = inflight
        self._suits = suits
        self._carry_out = carry_out
        self._started: list[threading.Thread] = []
        self._room = threading.Condition()
        self._running = 0

    @property
    def busy(self) -> bool:
        return self._running > 0

    def start(self) -> None:
        """Start the threads, once; never before a fork."""
        if self._started:
            return
        for n in range(1, self.number + 1):
            thread = threading.Thread(target=self._work, name=f"tasks_app thread {n}", daemon=True)
            self._started.append(thread)
            thread.start()

    def join(self, patience_s: float | None = None) -> None:
        for thread in self._started:
            thread.join(patience_s)

    def await_end(self, patience_s: float) -> None:
        with self._room:
            if self._running == self.number:
                self._room.wait(patience_s)

    def _work(self) -> None:
        while not self._inflight.stopping.is_set():
            with self._room:
                self._running += 1
            run = self._inflight.start_next(self._suits) or self._inflight.start_separate()
            if run is not None:
                try:
                    self._carry_out(run)
                except BaseException as error:  # the thread goes on with others
                    log.error("a run ended by an internal error: %s", type(error).__name__)  # noqa: TRY400
            with self._room:
                self._running -= 1
                self._room.notify_all()
            if run is not None:
                continue
            with self._inflight.startable:
                self._inflight.startable.wait(
                    THREAD_POLL_S if self._inflight.waiting else THREAD_PATIENCE_S
                )
