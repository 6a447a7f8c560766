"""The context of a run, which a handler gets beside its payload."""

from __future__ import annotations

import os
import threading
import time
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic
from uuid import uuid5

from tasks_app.domain.durations import named_duration
from tasks_app.domain.tasks.options import HEAVIEST, check_integer, check_sub_status
from tasks_app.domain.tasks.payload import decode
from tasks_app.runtime.handlers.run_log import RunLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime
    from typing import overload
    from uuid import UUID

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session
    from typing_extensions import ParamSpec, TypeVar

    from tasks_app.domain.durations import Duration
    from tasks_app.domain.tasks.options import Names
    from tasks_app.domain.tasks.run import Fence
    from tasks_app.pool.flows import NeededStep
    from tasks_app.runtime.db.transaction import Access
    from tasks_app.runtime.handlers.checkpoint import ActiveRun, Checkpoint, Chunks
    from tasks_app.runtime.handlers.steps import Steps
    from tasks_app.runtime.locks.run_locks import HoldOfRun, LocksOfChild, LocksOfRun

    SessionT_co = TypeVar("SessionT_co", covariant=True, default=Session)
    T = TypeVar("T")
    P = ParamSpec("P")
else:
    from typing import TypeVar

    SessionT_co = TypeVar("SessionT_co", covariant=True)  # its default needs Python 3.13


_FORKED = (
    "This process was forked from the handler's, and what it writes would not commit with the "
    "task. Use the context in the handler's own process."
)

SPENT: dict[tuple[int, int], int] = {}
"""What runs of this process have spent, by id and attempt, until their ends are booked."""


class TaskContext(Generic[SessionT_co]):
    """One run of one task: what it is, its session, and what the handler may ask for.

    >>> @handler("order.pay")
    ... def pay(ctx: TaskContext, payload: dict):
    ...     ctx.session.execute(text("UPDATE orders SET paid = true WHERE id = :id"), payload)
    ...     ctx.log.info("paid in attempt %s", ctx.attempt)
    """

    def __init__(
        self,
        run: ActiveRun,
        access: Access,
        deadline: float | None,
        log_prefix: bool,  # noqa: FBT001  made for each run: by name it takes longer
        locks: LocksOfChild | None = None,
    ) -> None:
        self.deadline = deadline
        """When ``timeout`` will be raised, by ``time.monotonic``. None: never."""
        self._run = run
        self._task = run.task
        self._access = access
        self._locks_of_child = locks
        self._locks: LocksOfRun | None = None
        self._log_prefix = log_prefix
        self._point: Checkpoint | None = None
        self._steps: Steps | None = None
        self._loops: tuple[str, ...] = ()
        self._over = False
        self._process = os.getpid()
        self._writing = threading.Lock()

    @property
    def task_id(self) -> int:
        """The task's id."""
        return self._task.fence.task_id

    @property
    def name(self) -> str:
        """The task's name."""
        return self._task.name

    @property
    def queue(self) -> str:
        """The queue in which it was created."""
        return self._task.queue

    @property
    def biz_key(self) -> str | None:
        """The business object that the task is about."""
        return self._task.biz_key

    @property
    def flow_id(self) -> int | None:
        """The flow of which it is a step, or the group of which it is a member. None: of none."""
        return self._task.group_id

    @property
    def fence(self) -> Fence:
        """What every write of this run must match: id, attempt and lease token."""
        return self._task.fence

    @property
    def attempt(self) -> int:
        """1 at the first claim. It rises with each claim and never falls."""
        return self._task.fence.attempt

    @property
    def failures(self) -> int:
        """How many attempts have been charged before this one."""
        return self._task.failures

    @property
    def max_attempts(self) -> int:
        """How many charged attempts lead to the error pool."""
        return self._task.max_attempts

    @property
    def created_at(self) -> datetime:
        """When the task was created."""
        return self._task.created_at

    @property
    def due_at(self) -> datetime:
        """From when on this run could start."""
        return self._task.due_at

    @property
    def idempotency_key(self) -> UUID:
        """The same at every attempt and after a requeue. Send it along with effects outside."""
        return self._task.idempotency_key

    @cached_property
    def log(self) -> RunLog:
        """A logger whose lines begin with id, name and attempt of the run."""
        about = {
            "task_id": self.task_id,
            "task_name": self.name,
            "attempt": self.attempt,
            "queue": self._task.queue,
            "biz_key": self._task.biz_key,
        }
        words = f"task {self.task_id} ({self.name}), attempt {self.attempt}"
        return RunLog(about, words if self._log_prefix else "")

    @property
    def session(self) -> SessionT_co:
        """A Session (in async handlers an AsyncSession) that commits with the outcome.

        What it wrote is rolled back when the handler raises or the lease is lost.

        Raises:
            RuntimeError: a thread that the handler left behind asks after the end of the run, or a
                process that the handler forked.
        """
        session: SessionT_co = self._given().session
        return session

    @property
    def connection(self) -> Connection:
        """The same transaction without the ORM.

        Raises:
            TypeError: in an async handler. Use ``await ctx.session.connection()`` there.
        """
        return self._given().connection

    def write(
        self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> None:
        """Write with a statement whose answer the handler does not need. It goes with the outcome.

        Such statements, outcome and COMMIT take one round trip together, which runs that do nothing
        else share. They come last, in their order. If one fails, the run fails after the handler
        has returned, and the error shows no line of it; SET, LISTEN, a text of several statements
        and a COMMIT that a text hides fail, too. The rows of a SELECT are dropped. A rollback of
        ``ctx.session`` takes nothing back. Async handlers do not await it either.

        >>> ctx.write("INSERT INTO points (customer, points) VALUES (%s, %s)", (7, 100))

        Args:
            query: SQL text with ``%s`` or ``%(name)s``, as psycopg takes it.
            parameters: for the places of the text. None: it has none, and ``%`` is a plain sign.

        Raises:
            TypeError: the query is not text, or the parameters are of another type.
            ValueError: parameters are missing, or the text has no place for them.
            RuntimeError: it would end the transaction, or is a COPY; or a thread that the handler
                left behind asks after the end of the run, or a process that the handler forked.
        """
        with self._writing:  # a thread left behind may write while the run ends
            self._given().write(query, parameters)

    def _given(self) -> Access:
        if self._over:
            raise RuntimeError(
                "The run is over, so this thread can write nothing for it. Join the thread before "
                "the handler returns."
            )
        if os.getpid() != self._process:
            raise RuntimeError(_FORKED)
        return self._access

    @property
    def headers(self) -> dict[str, Any]:
        """The headers that the producer gave to the task."""
        text = self._task.headers
        return {} if text is None else dict(decode(text, "headers"))

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled. The run learns it within two seconds.

        ``TaskCancelledError`` is raised then, unless the handler is declared with
        ``cancellable=False``. A handler that returns all the same still succeeds. One that raises
        ends in CANCELLED.
        """
        return self._run.cancelled

    @property
    def is_kept(self) -> bool:
        """Whether the task's row stays if it succeeds. See ``history`` of ``@handler``."""
        return self._run.is_kept

    @property
    def stopping(self) -> bool:
        """Whether the worker stops. A long run may commit and raise ``Snooze(0)``, uncharged."""
        return self._run.stops

    @property
    def checkpoint(self) -> Any:
        """What the last :meth:`commit` of this task kept, in any attempt. None: nothing.

        Set it to a small JSON object, and the next commit keeps that. In async handlers:
        ``await ctx.checkpoint``.

        Raises:
            InvalidTaskError: it was set to something that cannot be stored.
        """
        return self._checkpoint().get()

    @checkpoint.setter
    def checkpoint(self, value: Mapping[str, Any] | None) -> None:
        self._checkpoint().set(value)

    if TYPE_CHECKING:

        @overload
        def commit(
            self: TaskContext[AsyncSession], checkpoint: Mapping[str, Any] | None = None
        ) -> Awaitable[None]: ...
        @overload
        def commit(
            self: TaskContext[Session], checkpoint: Mapping[str, Any] | None = None
        ) -> None: ...

    def commit(self, checkpoint: Mapping[str, Any] | None = None) -> Any:
        """Commit what was done through ``ctx.session``, with a checkpoint if one is given.

        The run goes on in a new transaction, and the next attempt finds the checkpoint. The last
        :meth:`progress` is committed, too. In async handlers: ``await ctx.commit()``.

        Raises:
            LeaseLostError: another attempt owns the task now; nothing is committed.
            InvalidTaskError: the checkpoint cannot be stored.
            RuntimeError: a savepoint is open.
        """
        if checkpoint is not None:
            self._checkpoint().set(checkpoint)
        return self._checkpoint().commit()

    def step(
        self, name: str, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Any:
        """Return what ``function`` returned in this or an earlier attempt; it is not called twice.

        The first time it is called, and its result is kept by a :meth:`commit` of all that was done
        through ``ctx.session`` so far. If the process dies before that, it is called again: give
        effects outside the :meth:`step_key`. In async handlers: ``await ctx.step(...)``, of a
        function or a coroutine function.

        >>> @handler("order.ship")
        ... def ship(ctx: TaskContext, payload: dict):
        ...     key = ctx.step_key("parcel")
        ...     parcel = ctx.step("parcel", order_parcel, payload["to"], key=key)
        ...     ctx.sleep("1d", name="before-pickup")
        ...     return ctx.step("pickup", order_pickup, parcel["id"])

        Args:
            name: of the step, which finds its result. Up to 100 characters.
            function: what to call. It returns JSON, as a handler does, and does not commit.
            args: of the function.
            kwargs: of the function.

        Raises:
            LeaseLostError: another attempt owns the task now; nothing is committed.
            InvalidTaskError: the name or the result cannot be stored, which is not committed.
            ValueError: this run has a step or a sleep of this name already.
            RuntimeError: a savepoint is open, or another step's function runs.
        """
        return self._given_steps().step(name, partial(function, *args, **kwargs))

    def sleep(self, duration: Duration, *, name: str) -> Any:
        """Let the task go on after ``duration``: it holds no worker and no connection meanwhile.

        The first time this commits, as :meth:`step` does, and ends the run, uncharged. A run that
        starts later than that returns here at once; one that starts earlier ends again. In async
        handlers: ``await ctx.sleep(...)``.

        Raises:
            Snooze: always, until the time is over. Do not catch it.
            LeaseLostError: another attempt owns the task now; nothing is committed.
            ValueError: it is no duration, or this run has a step or a sleep of this name already.
            RuntimeError: a savepoint is open, or a step's function runs.
        """
        return self._given_steps().sleep(named_duration("duration", duration), name)

    def step_key(self, name: str) -> UUID:
        """Return a key that is the same in all attempts, for effects outside of a step."""
        return uuid5(self.idempotency_key, name)

    def chunks(
        self,
        statement: Any,
        *,
        key: Any,
        size: int = 1000,
        max_ms: float | None = None,
        name: str = "",
        params: Mapping[str, Any] | None = None,
    ) -> Chunks:
        """Return the rows of a SELECT in pages (lists); the work on each is one :meth:`commit`.

        The loop commits when it asks for the next page, together with the last key of the page
        before. After a crash it goes on behind that key. In async handlers: ``async for``.

        Between two pages the task goes back, uncharged, if its worker stops, or if its queue is
        paused or outside its windows. A cancelled task ends there.

        Args:
            statement: a ``select()`` of columns or one entity, or SQL text with ``params``.
            key: columns of it, or their names, that are unique together and never null. An index
                must find rows in their order.
            size: rows of a page, at most.
            max_ms: pages shrink until the work on one takes no longer than this.
            name: tells several loops of one handler apart.
            params: parameters of SQL text.

        Raises:
            ValueError: ``size`` or ``max_ms`` is not positive, two loops have one name, or the
                statement has a LIMIT.
            TypeError: ``statement`` is not a SELECT.
        """
        if size < 1 or (max_ms is not None and max_ms <= 0):
            raise ValueError("size and max_ms must be positive.")
        if name in self._loops:
            raise ValueError(f"This run has a loop named {name!r} already. Give each its own name.")
        from tasks_app.pool.tasks.paging import Paged  # noqa: PLC0415  it is rare
        from tasks_app.runtime.handlers.checkpoint import Chunks  # noqa: PLC0415

        paged, point = Paged(statement, key, params), self._checkpoint()
        self._loops += (name,)
        return Chunks(self._run, self._given(), point, paged, size, max_ms, name)

    if TYPE_CHECKING:

        @overload
        def needs(self: TaskContext[AsyncSession]) -> Awaitable[dict[str, NeededStep]]: ...
        @overload
        def needs(self: TaskContext[Session]) -> dict[str, NeededStep]: ...

    def needs(self) -> Any:
        """Return the steps of its flow that this one needs, by name: ends and results.

        Empty for a task that is no step. In async handlers: ``await ctx.needs()``.
        """
        from tasks_app.runtime.handlers.needs import read_needs  # noqa: PLC0415  it is rare

        return read_needs(self._given(), self.task_id)

    if TYPE_CHECKING:

        @overload
        def need(self: TaskContext[AsyncSession], step: str) -> Awaitable[Any]: ...
        @overload
        def need(self: TaskContext[AsyncSession], step: str, kind: type[T]) -> Awaitable[T]: ...
        @overload
        def need(self: TaskContext[Session], step: str) -> Any: ...
        @overload
        def need(self: TaskContext[Session], step: str, kind: type[T]) -> T: ...

    def need(self, step: str, kind: Any = None) -> Any:
        """Return the result of a step that this one needs; None: it returned none, or failed.

        With ``kind``, a type that pydantic knows, the result is checked and made one of it. In
        async handlers: ``await ctx.need("pay")``.

        >>> @handler("order.ship")
        ... def ship(ctx: TaskContext, payload: dict):
        ...     return {"paid by": ctx.need("pay")["card"]}

        Raises:
            TasksError: this task does not need that step.
            pydantic.ValidationError: the result is not of that type.
        """
        from tasks_app.runtime.handlers.needs import result_of  # noqa: PLC0415  it is rare

        step_of: Any = self
        needs = step_of.needs()
        if not self._access.is_async:
            return result_of(needs, step, kind)

        async def awaited() -> Any:
            return result_of(await needs, step, kind)

        return awaited()

    if TYPE_CHECKING:

        @overload
        def event(self: TaskContext[AsyncSession], key: str) -> Awaitable[Any]: ...
        @overload
        def event(
            self: TaskContext[AsyncSession], key: str, kind: type[T]
        ) -> Awaitable[T | None]: ...
        @overload
        def event(self: TaskContext[Session], key: str) -> Any: ...
        @overload
        def event(self: TaskContext[Session], key: str, kind: type[T]) -> T | None: ...

    def event(self, key: str, kind: Any = None) -> Any:
        """Return the payload of an event that this step needs; None: its time-out came first.

        With ``kind``, a type that pydantic knows, it is checked and made one of it. In async
        handlers: ``await ctx.event("order:7/approved")``.

        >>> @handler("order.ship")
        ... def ship(ctx: TaskContext, payload: dict):
        ...     return {"approved": ctx.event("order:7/approved") is not None}

        Raises:
            TasksError: this task does not need that event.
            pydantic.ValidationError: the payload is not of that type.
        """
        from tasks_app.runtime.handlers.needs import payload_of, read_events  # noqa: PLC0415  it is rare

        events: Any = read_events(self._given(), self.task_id)
        if not self._access.is_async:
            return payload_of(events, key, kind)

        async def awaited() -> Any:
            return payload_of(await events, key, kind)

        return awaited()

    if TYPE_CHECKING:

        @overload
        def wait_event(
            self: TaskContext[AsyncSession], key: str, timeout: Duration | None = None
        ) -> Awaitable[Any]: ...
        @overload
        def wait_event(
            self: TaskContext[AsyncSession],
            key: str,
            timeout: Duration | None = None,
            *,
            kind: type[T],
        ) -> Awaitable[T | None]: ...
        @overload
        def wait_event(
            self: TaskContext[Session], key: str, timeout: Duration | None = None
        ) -> Any: ...
        @overload
        def wait_event(
            self: TaskContext[Session],
            key: str,
            timeout: Duration | None = None,
            *,
            kind: type[T],
        ) -> T | None: ...

    def wait_event(self, key: str, timeout: Duration | None = None, *, kind: Any = None) -> Any:
        """Return the payload of an event; if it was not sent, end the run until it is.

        The run ends here, uncharged, after a :meth:`commit`. When the event is sent, or its
        ``timeout`` is over, the handler starts from its beginning: it skips what it has done by
        :attr:`checkpoint`, and asks for the same key. None: the time-out came first. ``kind`` as in
        :meth:`event`. In async handlers: ``await ctx.wait_event(…)``.

        >>> @handler("order.pickup")
        ... def pickup(ctx: TaskContext, payload: dict):
        ...     if ctx.checkpoint is None:
        ...         ctx.commit({"parcel": "P-7"})
        ...     return {"collected": ctx.wait_event("parcel:P-7", timeout="5d") is not None}

        Raises:
            InvalidTaskError: the key cannot be stored, or the time-out is no positive duration.
            LeaseLostError: another attempt owns the task now; nothing is committed.
            RuntimeError: a savepoint is open.
            pydantic.ValidationError: the payload is not of that type.
        """
        from tasks_app.domain.events import event  # noqa: PLC0415  it is rare
        from tasks_app.runtime.handlers.needs import wait_for  # noqa: PLC0415  it is rare

        need = event(key, timeout)
        return wait_for(self._given(), self.task_id, self._checkpoint(), need, kind)

    def commit_by(self, save: Callable[[Connection], None]) -> None:
        """Commit with ``save`` last, which checks the fence and stores the caller's own state.

        For code that stores its state in its own row, as batches do. If it raises, nothing commits.
        """
        self._given().keep(save)

    def _checkpoint(self) -> Checkpoint:
        access = self._given()
        if self._point is None:
            from tasks_app.runtime.handlers.checkpoint import checkpoint_of  # noqa: PLC0415  it is rare

            self._point = checkpoint_of(self._run, access)
        return self._point

    def _given_steps(self) -> Steps:
        access = self._given()
        if self._steps is None:
            from tasks_app.runtime.handlers.steps import steps_of  # noqa: PLC0415  it is rare

            self._steps = steps_of(self._run, access, self._checkpoint())
        return self._steps

    @property
    def remaining(self) -> float | None:
        """Seconds until ``timeout``. None: there is no limit."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def progress(self, fraction: float, note: str = "") -> None:
        """Report how far this run is (0 to 1). It is visible within about two seconds."""
        self._run.progress = (min(1.0, max(0.0, float(fraction))), str(note)[:200])
        self._run.has_news = True

    def report(self, state: str, details: Any) -> None:
        """Report a state and small JSON about it while the run lasts. For ``update_state``."""
        self._run.reported = (state, None if self._run.is_secret else details)
        self._run.has_news = True

    def set_sub_status(self, text: str) -> None:
        """Set a state of the task in your own words: ``"waiting for bank"``.

        It is stored with the next :meth:`commit` or with the outcome, also when the handler raises.
        It stays until a run sets another; an empty text clears it.

        Raises:
            InvalidTaskError: it is longer than 200 characters, or holds what cannot be stored.
            RuntimeError: a process that the handler forked asks.
        """
        if os.getpid() != self._process:
            raise RuntimeError(_FORKED)
        self._run.sub_status = check_sub_status(text)

    def spend(self, tokens: int) -> None:
        """Say how many tokens of the rates of its limit keys this run has cost in all.

        The difference to the task's ``weight`` is taken from the rates, or given back to them, when
        the run has ended, however it ended. The last call counts. A run whose process dies costs
        the weight.

        >>> @handler("text.summarize")
        ... def summarize(ctx: TaskContext, payload: dict):
        ...     answer = ask_model(payload["text"])
        ...     ctx.spend(answer["tokens"])
        ...     return answer["text"]

        Raises:
            InvalidTaskError: it is no number of tokens.
            RuntimeError: a process that the handler forked asks.
        """
        if os.getpid() != self._process:
            raise RuntimeError(_FORKED)
        SPENT[self.fence[:2]] = check_integer(tokens, "tokens", 0, HEAVIEST)

    def locks(
        self,
        *,
        exclusive: Names = (),
        shared: Names = (),
        counted: Mapping[str, int] | None = None,
        wait: Duration = 0,
        snooze: Duration = "5s",
    ) -> HoldOfRun:
        """Return a group of named locks, held while a ``with`` block runs.

        The run gets all of them or none. If it cannot have them within ``wait``, the task comes
        back after about ``snooze``, uncharged. Once the run has used ``ctx.session``, the locks are
        held until that is committed. In async handlers: ``async with``.

        Raises:
            InvalidLockError: the names or numbers make no valid group.
        """
        if self._locks is None:
            from tasks_app.runtime.locks.run_locks import LocksOfRun  # noqa: PLC0415  it is rare

            assert self._locks_of_child is not None  # noqa: S101  a worker's context has them
            self._locks = LocksOfRun(self._locks_of_child, self._task, self._given())
        return self._locks.hold(exclusive, shared, counted, wait, snooze)

    def check_awaited(self) -> None:
        """Raise if the async handler forgot an await. For the executor."""
        access: Any = self._access
        access.check_awaited()

    def close(self) -> None:
        """End all access. For the executor."""
        with self._writing:
            self._over = True

    @property
    def has_locks(self) -> bool:
        """Whether it asked for locks. For the executor."""
        return self._locks is not None

    def end_locks(self) -> None:
        """Release all locks, after the commit or rollback. For the executor."""
        if self._locks is not None:
            self._locks.end()


if TYPE_CHECKING:
    AsyncTaskContext = TaskContext[AsyncSession]
else:

    class AsyncTaskContext(TaskContext):
        """The context of an async handler, without SQLAlchemy's async side."""
