"""``result_backend = "tasks_app://"``: Celery's AsyncResult, read from the rows of tasks."""

from __future__ import annotations

import os
from ast import literal_eval
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn

from celery import Celery, states
from celery.backends.base import BaseBackend
from celery.exceptions import Retry, TaskRevokedError, WorkerLostError
from celery.result import AsyncResult
from sqlalchemy import Connection, Engine

from tasks_app.broker.celery_tasks import from_json
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.errors import OutboxError
from tasks_app.domain.handlers.settlement import OUR_WORDS
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.records import Attempt, Task, TaskId
from tasks_app.domain.tasks.states import State
from tasks_app.pool.runs.heartbeats import state_of_run
from tasks_app.pool.tasks.browse import failed_attempts, id_of_call
from tasks_app.runtime.api.tasks import get_task, load_large_values
from tasks_app.runtime.db.database import reading_engine
from tasks_app.runtime.encryption.values import concealed_attempts

log = quiet_logger(__name__)
_REVOKED = {State.CANCELLED: "revoked", State.EXPIRED: "expired", State.SKIPPED: "skipped"}
URL = "tasks_app://"
_LARGEST_ID = 2**63 - 1


class PoolBackend(BaseBackend):
    """Reads the pool of this installation's settings, and never writes."""

    supports_autoexpire = True  # by the retention of the pool: beat has nothing to clean

    def __init__(self, app: Celery, url: str | None = None, **more: Any) -> None:
        super().__init__(app, url=url, max_cached_results=-1, **more)  # a task may be requeued
        self.thread_safe = True
        self._warned = False

    def as_uri(self, include_password: bool = False) -> str:  # noqa: ARG002, FBT001, FBT002
        return URL  # kombu takes none with an underscore apart

    def _get_task_meta_for(self, task_id: Any) -> dict[str, Any]:
        with _engine(os.getpid()).connect() as connection:
            task = _find(connection, str(task_id))
            meta = {"status": states.PENDING, "result": None}
            if task is not None:
                meta |= {"traceback": None, "children": [], "date_done": task.finished_at}
                meta |= self._outcome(connection, task)
        return {**meta, "task_id": task_id}

    def _outcome(self, connection: Connection, task: Task) -> dict[str, Any]:
        match task.state:
            case State.SUCCEEDED:
                result = from_json(load_large_values(connection, task).result)
                return {"status": states.SUCCESS, "result": result}
            case State.CANCELLED | State.EXPIRED | State.SKIPPED:
                error = TaskRevokedError(_REVOKED[task.state])
                return {"status": states.REVOKED, "result": error}
            case State.RUNNING:
                return self._running(connection, task)
            case State.PENDING if not task.attempt:
                return {}
            case State.PENDING | State.FAILED:
                attempts = concealed_attempts(failed_attempts(connection, task.id)[-1:], task)
                status = states.FAILURE if task.state is State.FAILED else states.RETRY
                return {"status": status, **(self._failure(attempts[0]) if attempts else {})}

    def _running(self, connection: Connection, task: Task) -> dict[str, Any]:
        owner = task.owner or ""
        reported = state_of_run(connection, owner, task.id, task.attempt)
        if reported is not None and reported[0] not in states.READY_STATES:
            return {"status": reported[0], "result": from_json(reported[1])}
        known = self.app.tasks.get(task.name)
        if not getattr(known, "track_started", self.app.conf.task_track_started):
            return {}  # as in Celery, which shows it only on request
        node, pid, _ = owner.rsplit(":", 2)
        return {"status": states.STARTED, "result": {"pid": int(pid), "hostname": node}}

    def _failure(self, last: Attempt) -> dict[str, Any]:
        """Return the exception by its class, if this process has it, and its text."""
        if last.kind in OUR_WORDS:
            error: Any = WorkerLostError(f"{last.kind}: {last.message}")
        elif last.kind == "Retry":  # self.retry
            error = Retry(last.message)
        else:
            error = self._with_text(last.kind, last.message)
        trace = f"Traceback (most recent call last):\n{last.traceback or ''}{last.kind}: {error}"
        return {"result": error, "traceback": trace}

    def _with_text(self, kind: str, text: str) -> BaseException:
        module, _, name = kind.rpartition(".")
        of = {"exc_module": module or "builtins", "exc_type": name}
        candidates: list[Any] = [[], [text]]
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            value = literal_eval(text)  # the text of a KeyError, or of several arguments
            candidates.insert(0, value if isinstance(value, tuple) else [value])
        for args in candidates:
            error: BaseException = self.exception_to_python({**of, "exc_message": args})
            if str(error) == text:
                return error
        error.args = (text,)
        return error

    def store_result(
        self,
        task_id: str,  # noqa: ARG002
        result: Any,
        state: str,  # noqa: ARG002
        traceback: Any = None,  # noqa: ARG002
        request: Any = None,
        **_: Any,
    ) -> Any:
        """Store nothing; of a task that a message brought, say so once."""
        if getattr(request, "pool_run", None) is None and not self._warned:
            self._warned = True
            log.warning(
                "tasks_app:// only reads the pool, so results of %s, which a message brought, are "
                "lost. Create such tasks in the pool, or give them ignore_result=True.",
                getattr(request, "task", None) or "a task",
            )
        return result

    def _forget(self, task_id: str) -> None:
        """Leave the row to the pool's retention."""

    def ensure_chords_allowed(self) -> NoReturn:
        raise NotImplementedError(
            "A chord of messages needs a result backend that stores. Give it to create_task, which "
            "makes a flow of it."
        )

    def _refuse_group(self, *_: Any) -> NoReturn:
        raise NotImplementedError(
            "tasks_app:// stores no GroupResult. Keep the ids of its tasks, or use create_group."
        )

    _save_group = _restore_group = _delete_group = _refuse_group


@cache
def _engine(_process: int) -> Engine:
    """Return the engine of this process: one that forks later shares nothing with its children."""
    return reading_engine(load_settings().database)


def _find(connection: Connection, given: str) -> Task | None:
    if not (given.isascii() and given.isdecimal()):
        if "\0" in given:  # which no row has
            return None
        found = id_of_call(connection, given)
        return None if found is None else get_task(connection, found)
    return get_task(connection, int(given)) if int(given) <= _LARGEST_ID else None


@cache
def backend_of(app: Celery) -> PoolBackend:
    """Return the backend for what an outbox wrote, whatever the app's own is."""
    return PoolBackend(app, url=URL)


class PoolResult(AsyncResult):
    """What ``.delay()`` returns within an outbox: an AsyncResult that reads the pool."""

    def __init__(
        self, app: Celery, task_id: TaskId | None = None, given: str | None = None
    ) -> None:
        self._task_id = task_id  # the outbox sets it later, if it writes later
        self._given = given
        super().__init__("", backend=backend_of(app), app=app)

    @property
    def task_id(self) -> TaskId:
        """The row's id.

        Raises:
            OutboxError: the ``async with`` block has not ended yet.
        """
        if self._task_id is None:
            raise OutboxError("The id is not known yet. Read it after the async with block.")
        return self._task_id

    def _shown_id(self) -> str:
        return self._given or str(self.task_id)

    id = property(_shown_id, lambda *_: None)  # AsyncResult sets one
    """The ``task_id`` of the call, or the row's id as text: ``self.request.id`` of its runs."""

    def __repr__(self) -> str:
        return f"<PoolResult {self._given or self._task_id or 'not written yet'}>"

    def __reduce__(self) -> Any:
        return AsyncResult, (self.id,)
