"""The outbox: within its block, calls of Celery tasks become rows in the caller's transaction."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import replace
from typing import Any, Protocol, Self

from celery import Task
from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from tasks_app.broker.results import PoolResult
from tasks_app.broker.translation import options_of
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.creation import NewTask
from tasks_app.domain.errors import InvalidConnectionError, OutboxError
from tasks_app.domain.tasks.call_payload import CALL_ID
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.payload import decode
from tasks_app.domain.tasks.records import TaskId
from tasks_app.runtime.api.producer import acreate_tasks, admitted, create_task
from tasks_app.runtime.db.connections import shown

log = quiet_logger(__name__)


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
        again = bool(options.get("retries"))  # from self.retry in a plain worker
        if not again and not self.app.conf.task_always_eager:
            sink = _sink.get()
            if sink is None:
                _check_rule(self)
            elif not sink.open:
                raise OutboxError(f"{self.name} was called after its outbox was closed.")
            else:
                return sink.put(NewTask(self, None, options_of(self.app, given), args, kwargs))
        return super().apply_async(args, kwargs, producer=producer, shadow=shadow, **given)


def _check_rule(task: Task) -> None:
    # The queues of an app of ours would refuse the message.
    if _rule() == "refuse" or getattr(task.app, "serves_pool", False):
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


class Sink(Protocol):
    """Where the calls of one block go."""

    open: bool
    """Whether the block has not ended; a thread or asyncio task may outlive it."""

    def put(self, new: NewTask) -> PoolResult:
        """Check the call, and write or collect it; InvalidTaskError refuses it."""


def _result_of(new: NewTask, task_id: TaskId | None = None) -> PoolResult:
    given = (new.options or {}).get("headers") or {}
    return PoolResult(new.task.app, task_id, given.get(CALL_ID))


class _ImmediateSink:
    """Inserts at once."""

    def __init__(self, session: Session | Connection) -> None:
        self.open = True
        self._session = session
        self._committed = False
        self._since_commit = 0

    def put(self, new: NewTask) -> PoolResult:
        task_id = create_task(
            self._session, new.task, args=new.args, kwargs=new.kwargs, **(new.options or {})
        )
        self._since_commit += 1
        return _result_of(new, task_id)

    def watch_commits(self) -> None:
        if isinstance(self._session, Session):
            event.listen(self._session, "after_commit", self._note_commit)

    def close(self, *, failed: bool) -> None:
        self.open = False
        if isinstance(self._session, Session):
            event.remove(self._session, "after_commit", self._note_commit)
        if not failed and self._committed and self._since_commit:
            log.warning(
                "%s calls in an outbox came after its commit: they are not committed, and lost "
                "unless you commit again. Call before you commit.",
                self._since_commit,
            )

    def _note_commit(self, session: Session) -> None:
        if session.get_nested_transaction() is None:  # savepoints send the event, too
            self._committed, self._since_commit = True, 0


class _CollectingSink:
    """Checks at once and collects: ``.delay()`` cannot wait for an async session."""

    def __init__(self) -> None:
        self.open = True
        self.collected: list[tuple[NewTask, PoolResult]] = []

    def put(self, new: NewTask) -> PoolResult:
        payload = admitted(new, large=True).payload  # as it is now: the caller may change it
        call = decode(payload, "payload")
        result = _result_of(new)
        self.collected.append((replace(new, args=call["args"], kwargs=call["kwargs"]), result))
        return result


_sink: ContextVar[Sink | None] = ContextVar("tasks_app_outbox", default=None)


class outbox:  # noqa: N801  read as a statement: with outbox(session)
    """Within the block, ``.delay()`` and ``.apply_async()`` of an OutboxTask write to the pool.

    The rows belong to the session's transaction: they exist if and only if it commits. Nothing is
    committed here. ``with`` takes a Session or Connection; ``async with`` an AsyncSession or
    AsyncConnection, and writes at the end of the block.
    """

    def __init__(self, session: Session | Connection | AsyncSession | AsyncConnection) -> None:
        self._session = session
        self._token: Token[Sink | None]

    def __enter__(self) -> Self:
        """Open the block."""
        if not isinstance(self._session, Session | Connection):
            raise InvalidConnectionError(
                f"{shown(self._session)} isn't a Session or Connection. Pass yours to: with "
                "outbox(…). For others: async with outbox(…)."
            )
        self._immediate = _ImmediateSink(self._session)
        self._immediate.watch_commits()
        self._token = _sink.set(self._immediate)
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        """Close the block; the transaction is the caller's."""
        _sink.reset(self._token)
        self._immediate.close(failed=failed is not None)

    async def __aenter__(self) -> Self:
        """Open the block."""
        if not isinstance(self._session, AsyncSession | AsyncConnection):
            raise InvalidConnectionError(
                f"{shown(self._session)} isn't an AsyncSession or AsyncConnection. "
                "Pass yours to: async with outbox(…). For others: with outbox(…)."
            )
        self._collecting = _CollectingSink()
        self._token = _sink.set(self._collecting)
        return self

    async def __aexit__(self, failed: object, *_: object) -> None:
        """Write what was collected, unless the block raised."""
        _sink.reset(self._token)
        self._collecting.open = False
        if failed is None and self._collecting.collected:
            news, results = zip(*self._collecting.collected, strict=True)
            ids = await acreate_tasks(self._session, news)  # type: ignore[arg-type]
            for result, task_id in zip(results, ids, strict=True):
                result._task_id = task_id  # noqa: SLF001  known only now
