"""The outbox: inside its block ``.delay()`` writes a row in the caller's transaction."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import replace
from typing import Any, Protocol, Self

from celery import Task
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from tasks_app.broker.celery_options import options_of
from tasks_app.domain.errors import TasksError
from tasks_app.domain.logs import quiet_logger
from tasks_app.domain.payload import decode
from tasks_app.domain.settings import load_settings
from tasks_app.domain.task import NewTask, TaskId
from tasks_app.runtime.producer import acreate_tasks, admitted, create_task

log = quiet_logger(__name__)


class OutboxError(TasksError):
    """A task was called where it cannot be written into the pool."""


class PoolResult:
    """What ``.delay()`` returns inside an outbox: the id. The result itself is in the pool."""

    def __init__(self, task_id: TaskId | None = None) -> None:
        self._task_id = task_id

    @property
    def task_id(self) -> TaskId:
        """The row's id.

        Raises:
            OutboxError: it is given when the ``async with`` block ends.
        """
        if self._task_id is None:
            raise OutboxError("The id is not known yet. Read it after the async with block.")
        return self._task_id

    @property
    def id(self) -> str:
        """The same as text: ``self.request.id`` of its runs."""
        return str(self.task_id)

    def given(self, task_id: TaskId) -> None:
        """Learn the id, for the outbox."""
        self._task_id = task_id

    def __repr__(self) -> str:
        return f"<PoolResult {self._task_id or 'not written yet'}>"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"A task in the pool has no {name!r} here. Ask the pool: get_task(session, task_id)."
        )


class _Sink(Protocol):
    def put(self, new: NewTask) -> PoolResult: ...


class _Now:
    """Inserts at once."""

    def __init__(self, session: Session | Connection) -> None:
        self._session = session

    def put(self, new: NewTask) -> PoolResult:
        return PoolResult(
            create_task(self._session, new.task, args=new.args, kwargs=new.kwargs, **new.options)
        )


class _Later:
    """Checks at once and collects: ``.delay()`` cannot wait for an async session."""

    def __init__(self) -> None:
        self.collected: list[tuple[NewTask, PoolResult]] = []

    def put(self, new: NewTask) -> PoolResult:
        call = decode(admitted(new).payload, "payload")  # as it is now, whatever happens to it
        result = PoolResult()
        self.collected.append((replace(new, args=call["args"], kwargs=call["kwargs"]), result))
        return result


_sink: ContextVar[_Sink | None] = ContextVar("tasks_app_outbox", default=None)


class outbox:  # noqa: N801  read as a statement: with outbox(session)
    """Within the block, ``.delay()`` and ``.apply_async()`` of an OutboxTask write to the pool.

    The rows belong to the session's transaction: they exist if and only if it commits. Nothing is
    committed here. ``with`` takes a Session or Connection; ``async with`` an AsyncSession or
    AsyncConnection, and writes at the end of the block.
    """

    def __init__(self, session: Session | Connection | AsyncSession | AsyncConnection) -> None:
        self._session = session
        self._token: Token[_Sink | None]

    def __enter__(self) -> Self:
        """Open the block."""
        if not isinstance(self._session, Session | Connection):
            raise TypeError("with outbox(…) takes a Session or Connection; others: async with.")
        self._token = _sink.set(_Now(self._session))
        return self

    def __exit__(self, *_: object) -> None:
        """Close it; the transaction is the caller's."""
        _sink.reset(self._token)

    async def __aenter__(self) -> Self:
        """Open the block."""
        if not isinstance(self._session, AsyncSession | AsyncConnection):
            raise TypeError("async with outbox(…) takes an AsyncSession or AsyncConnection.")
        self._later = _Later()
        self._token = _sink.set(self._later)
        return self

    async def __aexit__(self, failed: object, *_: object) -> None:
        """Write what was collected, unless the block raised."""
        _sink.reset(self._token)
        if failed is None and self._later.collected:
            news, results = zip(*self._later.collected, strict=True)
            ids = await acreate_tasks(self._session, news)  # type: ignore[arg-type]
            for result, task_id in zip(results, ids, strict=True):
                result.given(task_id)


class OutboxTask(Task):
    """``@app.task(base=OutboxTask)``: its calls go into the open outbox.

    Without one, ``TASKS_APP_OUTSIDE_OUTBOX`` decides: publish as Celery does, with or without a
    warning, or refuse.
    """

    abstract = True

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> Any:
        """Create a row in the open outbox, or do what Celery does."""
        given = {**options, "task_id": task_id, "link": link, "link_error": link_error}
        sink = _sink.get()
        again = bool(options.get("retries"))  # self.retry in a plain worker
        if sink is not None and not again and not self.app.conf.task_always_eager:
            return sink.put(NewTask(self, None, options_of(self.app, given), args, kwargs))
        if not again and not self.app.conf.task_always_eager:
            _outside(self)
        return super().apply_async(args, kwargs, producer=producer, shadow=shadow, **given)


def _outside(task: Task) -> None:
    """Refuse, warn or say nothing."""
    from tasks_app.broker.app import PoolCelery  # noqa: PLC0415  loads the worker's half of Celery

    if _rule() == "refuse" or isinstance(task.app, PoolCelery):  # whose queues would refuse it
        raise OutboxError(
            f"{task.name} was called without an outbox. "
            "Call it within: with outbox(session), or use create_task."
        )
    if _rule() == "warn":
        log.warning(
            "%s was called without an outbox and goes to the broker, committed or not", task.name
        )


@functools.cache
def _rule() -> str:
    return load_settings().outside_outbox
