"""Calls a handler, sync or async, through all middleware, and guards the process against it."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import faulthandler
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only as await_

from tasks_app.domain.config.retention import parse_histories
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.encryption import (
    HIDDEN_VALUE,
    TOKEN_BEGIN,
    MissingKeyError,
    SealBrokenError,
    token_in,
)
from tasks_app.domain.errors import InvalidLockError, TaskCancelledError, UnreadableTaskError
from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.handlers.settlement import keeps_row, settle_return
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.large_values import store as references
from tasks_app.domain.locks import named_locks
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.masks import is_erased
from tasks_app.domain.tasks.payload import decode
from tasks_app.domain.tasks.payload_type import explain
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Fence, Settlement
from tasks_app.pool.runs.claim import fetch_payload
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import is_lost
from tasks_app.runtime.db.transaction import AsyncTransaction, RunTransaction, Transaction
from tasks_app.runtime.encryption.encryption import PAYLOAD, RESULT, Encryption
from tasks_app.runtime.execution.pools import unlisted
from tasks_app.runtime.flow_control.breakers import DependencyCounts
from tasks_app.runtime.handlers.checkpoint import ActiveRun
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.interrupts import AsyncCall, PlainCall, heed_interrupts
from tasks_app.runtime.handlers.middleware import Middleware, chain
from tasks_app.runtime.handlers.time_limits import time_limit
from tasks_app.runtime.large_values import LargeStoreError, LargeValues

log = quiet_logger(__name__)


class FenceLostError(Exception):
    """The lease was lost before the handler was called. Ours alone: no handler can raise it."""


class NotBegunError(Exception):
    """The handler was not called, but the run may still be ours, and is to be given back."""


class Invocation:
    def __init__(
        self,
        settings: Settings,
        database: Database,
        guard: ProcessGuard,
        middleware: Sequence[Middleware] = (),
        plain_lane: Callable[..., Any] | None = None,
    ) -> None:
        self._settings = settings
        self._database = database
        self._middleware = middleware
        self.dependencies = DependencyCounts()
        self.plain: SyncLane = (plain_lane or SyncLane)(database, guard)
        self._async = AsyncLane(database, guard, settings.async_connections)
        self.secrecy = Secrecy(Encryption(settings))
        self._large = LargeValues(settings)
        self._histories = parse_histories(settings.history)

    def lane(self, spec: HandlerSpec) -> Lane:
        return self._async if spec.is_async else self.plain

    def make(
        self, run: ActiveRun, spec: HandlerSpec, context: TaskContext, limit: float | None
    ) -> Settlement:
        """Call the handler and return its success; raise what it raises.

        Raises:
            FenceLostError: the run is not ours any more.
            NotBegunError: nothing was called: no payload came, or the lease may be over.
            MissingKeyError: nothing was called: there is no key to decrypt or to encrypt with.
        """
        arguments = self.prepare(run, spec, context)
        return self.success(run, spec, self.call(run, spec, context, arguments, limit))

    def prepare(self, run: ActiveRun, spec: HandlerSpec, context: TaskContext) -> tuple[Any, ...]:
        """Return what the handler of a run is called with; raise as :meth:`make`."""
        lane = self._async if spec.is_async else self.plain
        arguments = self._arguments(run, spec, lane, context) if spec.takes_payload else (context,)
        task = run.task
        may_be = self.secrecy.listed or spec.encrypted or (task.payload or "").startswith(STORED)
        secret = may_be and self.secrecy.begin(task, spec)
        if time.monotonic() >= run.held_until:
            log.warning("task %s: not begun, its lease may be over", task.task_id)
            raise NotBegunError
        run.is_secret = secret
        run.is_kept = keeps_row(task, spec, self._histories)
        return arguments

    def call(
        self,
        run: ActiveRun,
        spec: HandlerSpec,
        context: TaskContext,
        arguments: tuple[Any, ...],
        limit: float | None,
    ) -> Any:
        """Call the handler through all middleware."""
        call = partial(self.lane(spec).call, spec, arguments, limit, run)
        if self._middleware:
            return chain(self._middleware, context, partial(self.dependencies.watch, spec, call))
        if spec.depends_on is not None:
            return self.dependencies.watch(spec, call)
        return call()

    def success(self, run: ActiveRun, spec: HandlerSpec, value: Any) -> Settlement:
        """Return the success of a run whose handler returned a value."""
        task, secret = run.task, run.is_secret
        result = None if value is None else self._large.encoded(value, spec.to_json)
        if not run.is_kept:
            result = None
        large = result is not None and self._large.has_large_result(result)
        if secret and result is not None:
            result = self.secrecy.result(result, task.name)
        if large and result is not None:
            begin, task_id = self._database.begin, task.task_id
            keep = partial(self._large.keep_result, begin, task_id, result)
            result = self.lane(spec).call_blocking(keep)
        run_ms = round((time.monotonic() - run.since) * 1000)
        return settle_return(task, result, run_ms, run.since, is_kept=run.is_kept)

    async def close(self) -> None:
        await self._async.close()

    def _arguments(
        self, run: ActiveRun, spec: HandlerSpec, lane: Lane, context: TaskContext
    ) -> tuple[Any, ...]:
        task = run.task
        text = task.payload
        if text is None or text.startswith(LARGE):
            try:
                text = lane.call_blocking(lambda: self._fetched(task))
            except (SQLAlchemyError, LargeStoreError) as error:
                if isinstance(error, LargeStoreError) or is_lost(error):
                    raise NotBegunError from error
                raise
        if text is None:
            raise FenceLostError
        return arguments_of(spec, context, self.secrecy.payload(run, text))

    def _fetched(self, task: ClaimedTask) -> str | None:
        text = task.payload
        if text is None:
            with self._database.begin() as connection:
                text = fetch_payload(connection, task.fence)
        return text and self._large.payload(self._database.begin, task.task_id, text)


def arguments_of(spec: HandlerSpec, context: TaskContext, payload: str) -> tuple[Any, ...]:
    """Return what the handler is called with; its payload is read from JSON text.

    Raises:
        Fail: the payload does not fit.
    """
    try:
        if spec.locks is not None:
            named_locks(spec.locks, decode(payload, "payload"))
        return (context, spec.payload(payload))
    except InvalidLockError as error:
        raise Fail(str(error)) from None
    except ValidationError as error:
        path, problem = explain(error)
        raise Fail(f"{path} {problem}") from None
    except UnreadableTaskError as error:
        raise Fail(str(error)) from None


T = TypeVar("T")


class SyncLane:
    def __init__(self, database: Database, guard: ProcessGuard) -> None:
        self._guard = guard
        self._database = database

    def transaction(self, fence: Fence) -> Transaction:
        return RunTransaction(self._database.handler_engine, fence)

    def call(
        self, spec: HandlerSpec, arguments: tuple[Any, ...], limit: float | None, run: ActiveRun
    ) -> Any:
        """Run the function; the limit is raised in it where signals allow, as a cancel is.

        It runs in a copy of the context, so that its context variables end with it.
        """
        run.call = call = PlainCall(run.thread)
        for other in run.others:
            other.call = call
        with self._guard, call:
            if limit is None or spec.keeps_timeout:
                return contextvars.copy_context().run(spec.function, *arguments)
            with time_limit(limit, spec.timeout_error):
                return contextvars.copy_context().run(spec.function, *arguments)

    def call_blocking(self, work: Callable[[], T]) -> T:
        """Do blocking work of ours here: this thread has one run."""
        return work()


class AsyncLane:
    """Calls coroutine functions in the async pool's event loop.

    A run is plain code, around handlers of both kinds; around this one it is a greenlet, which
    waits here while the loop goes on with others.
    """

    def __init__(self, database: Database, guard: ProcessGuard, connections: int) -> None:
        self._database = database
        self._guard = guard
        self._connections = connections
        self._engine: AsyncEngine | None = None

    def transaction(self, fence: Fence) -> AsyncTransaction:
        if self._engine is None:
            self._engine = self._database.async_engine(self._connections)
        return AsyncTransaction(self._engine, fence)

    def call(
        self, spec: HandlerSpec, arguments: tuple[Any, ...], limit: float | None, run: ActiveRun
    ) -> Any:
        """Run the coroutine; limit and cancel end it at its next await.

        In a task of its own: a cancellation that it left pending must not hit our COMMIT. What it
        raised comes back as a value: a SystemExit would end the whole event loop.
        """

        async def limited() -> tuple[Any, BaseException | None]:
            scope = asyncio.timeout(limit)
            try:
                async with scope:
                    with self._guard:
                        value = await spec.function(*arguments)
                        arguments[0].check_awaited()
                        return value, None
            except TimeoutError as error:
                expired = limit is not None and scope.expired()
                return None, spec.timeout_error(limit or 0.0) if expired else error
            except BaseException as error:
                return None, error

        task = unlisted(limited(), spec.name)
        run.call = call = AsyncCall(task)
        for other in run.others:
            other.call = call
        value, error = await_(task)
        if call.asked and isinstance(error, asyncio.CancelledError):
            raise TaskCancelledError from error
        if error is not None:
            raise error
        return value

    def call_blocking(self, work: Callable[[], T]) -> T:
        """Do blocking work of ours in a thread, so that the loop goes on.

        A run whose handler has returned may be ended where no loop is.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return work()
        return await_(asyncio.to_thread(work))

    async def close(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.dispose()


class ProcessGuard:
    """A block around each handler; one object serves all threads of a process."""

    def __init__(self, *, replaceable: bool) -> None:
        self._replaceable = replaceable
        self._pid = os.getpid()
        self._main = threading.main_thread().ident
        self._recursion_limit = sys.getrecursionlimit()
        self._cpu_limit = resource.getrlimit(resource.RLIMIT_CPU)
        timers = (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        self._timers = [each for each in timers if not any(signal.getitimer(each))]
        """Unused when the process began: a profiler keeps its own."""
        if threading.get_ident() == self._main:
            heed_interrupts()
            if signal.getsignal(signal.SIGALRM) == _KILLS:
                signal.signal(signal.SIGALRM, lambda *_: None)  # a thread's may ring; see below
        with tempfile.TemporaryFile() as file:
            self._guard_file = os.dup(file.fileno())
        os.lseek(self._guard_file, _POSITION, os.SEEK_SET)
        self.unfit = False
        """Whether this process should make room for another: it has no descriptors left."""

    def __enter__(self) -> None:
        """Begin the handler."""

    def __exit__(self, *_: object) -> None:
        if os.getpid() != self._pid:
            os._exit(0)  # forked by the handler: fence, pipes and slot are not its own
        if threading.get_ident() == self._main:
            signal.setitimer(signal.ITIMER_REAL, 0)  # a thread's may not: it could be our limit
        for timer in self._timers:
            signal.setitimer(timer, 0)  # else it hits the next task, as all of these
        faulthandler.cancel_dump_traceback_later()
        if resource.getrlimit(resource.RLIMIT_CPU) != self._cpu_limit:
            self._put_back_cpu_limit()
        if sys.getrecursionlimit() < self._recursion_limit:
            sys.setrecursionlimit(self._recursion_limit)
        self._count_descriptors()

    def _put_back_cpu_limit(self) -> None:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, self._cpu_limit)
        except ValueError:  # the hard one was lowered, for ever
            log.critical("a handler limited the CPU time of this process, which should end")
            self.unfit = self._replaceable

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._guard_file)

    def _count_descriptors(self) -> None:
        try:
            if os.lseek(self._guard_file, 0, os.SEEK_CUR) != _POSITION:
                self._end()  # another file has its number now
            os.close(os.dup(self._guard_file))
        except OSError as error:
            if error.errno in {errno.EBADF, errno.ESPIPE}:
                self._end()
            log.critical("a handler left no file descriptors; this process should end")
            self.unfit = self._replaceable

    def _end(self) -> None:
        log.critical("a handler closed descriptors that are not its own; this process ends")
        os._exit(BROKEN_STATUS)


Lane: TypeAlias = SyncLane | AsyncLane  # one way to call handlers
LARGE = references.REFERENCE_BEGIN
STORED = (TOKEN_BEGIN, LARGE)  # payloads that may be encrypted begin so
_ERASED = "The payload was erased, so the task cannot run."


class Secrecy:
    def __init__(self, encryption: Encryption) -> None:
        self._encryption = encryption
        self.listed = bool(encryption.patterns)  # whether the settings encrypt any tasks
        encryption.keyring  # noqa: B018  what is wrong with the keys is said at the start

    def covers(self, task: ClaimedTask, spec: HandlerSpec) -> bool:
        """Whether handler or settings say so, or the task's payload is encrypted."""
        if spec.encrypted or token_in(task.payload) is not None:
            return True
        reference = references.reference_in(task.payload)
        if reference is not None and reference.encrypted:
            return True
        return self.listed and self._encryption.asks(task.name, task.queue)

    def begin(self, task: ClaimedTask, spec: HandlerSpec) -> bool:
        """Return whether what comes of a run is to be encrypted.

        Raises:
            MissingKeyError: it is, and there is no key for that.
        """
        secret = self.covers(task, spec)
        if secret and not self._encryption.has_key():
            raise MissingKeyError(None)
        return secret

    def payload(self, run: ActiveRun, text: str) -> str:
        """Return the payload of a run, JSON text, as the handler is to have it.

        Raises:
            MissingKeyError: its key is not here.
            Fail: it was erased, or cannot be decrypted, wherever it runs.
        """
        if is_erased(text):
            raise Fail(_ERASED)
        if not text.startswith(TOKEN_BEGIN) or token_in(text) is None:
            return text
        run.task = run.task._replace(payload=text)  # known from now on, even of a large one
        try:
            return self._encryption.opened(text, PAYLOAD, run.task.name)
        except SealBrokenError as error:
            raise Fail(str(error)) from None

    def new_payload(self, text: str, name: str) -> str:
        return self._encryption.sealed(text, PAYLOAD, name)

    def result(self, text: str, name: str) -> str:
        return self._encryption.sealed(text, RESULT, name)

    def cause(self, cause: Cause, name: str) -> Cause:
        """Return a cause whose text is encrypted; without a key, which went away, it is lost."""
        if cause.message == _ERASED:
            return cause  # no secret, and what an operator has to know
        try:
            return self._encryption.hidden(cause, name)
        except MissingKeyError:
            return Cause(cause.kind, HIDDEN_VALUE, cause.traceback)


BROKEN_STATUS = 70
_KILLS = signal.SIG_DFL
_POSITION = 0x7A5C5A9B
"""The position in an empty file of ours, which shows that its number is still its own. It is read
after each task, so that must be cheap: ``fstat`` took four times as long."""
