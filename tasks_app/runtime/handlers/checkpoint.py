"""The checkpoint of a run: where the next attempt goes on, committed with the work so far."""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType
from typing import Any, TypeAlias

from sqlalchemy import Connection

from tasks_app.domain.errors import InvalidTaskError, LeaseLostError
from tasks_app.domain.tasks.payload import encode_object
from tasks_app.pool.runs.sub_status import say
from tasks_app.pool.tasks.run_records import Note
from tasks_app.pool.tasks.run_records import keep
from tasks_app.pool.tasks.run_records import read
from tasks_app.runtime.db.connections import noted
from tasks_app.runtime.db.transaction import Access
from tasks_app.runtime.handlers.active_run import ActiveRun

LIMIT = 64 * 1024
"""Bytes of one checkpoint, which is written with each commit."""
PLACES = "ctx.chunks"
"""The key of a checkpoint under which it holds the places of loops over chunks."""


class CheckpointPoint:
    """What one run knows of its checkpoint."""

    def __init__(self, run: ActiveRun, access: Access) -> None:
        self._run = run
        self._access = access
        self._value: dict[str, Any] | None = None
        self._places: dict[str, Any] = {}
        self._known = run.task.fence.attempt == 1  # no attempt before could leave one
        self._changed = False

    def set(self, value: Mapping[str, Any] | None) -> None:
        """Check it, and keep it for the next commit.

        Raises:
            InvalidTaskError: it cannot be stored.
        """
        if value is not None:
            encode_object(value, "checkpoint", LIMIT)
            if PLACES in value:
                raise InvalidTaskError(f"checkpoint.{PLACES}", "is ours", "any other name")
        self._value = None if value is None else dict(value)
        self._changed = True

    def go_on_behind(self, name: str, place: list[list[Any]]) -> None:
        """Set where a loop, which has read the places, goes on after the next commit."""
        self._places[name] = place
        self._changed = True

    def _learn(self, connection: Connection) -> None:
        """Read what an earlier attempt left; a value that was set meanwhile stays."""
        found = read(connection, self._run.task.task_id)
        kept = dict(found.checkpoint or {}) if found else {}
        self._places, self._known = kept.pop(PLACES, {}), True
        if not self._changed:
            self._value = kept or None

    def _keep(self, connection: Connection) -> None:
        if self._changed and not self._known:
            self._learn(connection)
        task, progress = self._run.task, self._run.progress
        note = Note(
            self._text() if self._changed else None, self._changed, *(progress or (None, None))
        )
        cancelled = keep(connection, task.fence, note)
        if cancelled is None:
            raise LeaseLostError(task.task_id)
        if self._run.sub_status is not None:
            say(connection, task.fence, self._run.sub_status)
        self._run.cancelled = self._run.cancelled or cancelled

    def _text(self) -> str | None:
        if self._value is None and not self._places:
            return None
        places = {PLACES: self._places} if self._places else {}
        return encode_object({**(self._value or {}), **places}, "checkpoint", 2 * LIMIT)


class PlainPoint(CheckpointPoint):
    """For plain handlers."""

    def get(self) -> dict[str, Any] | None:
        if not self._known:
            self._learn(self._access.connection)
        return self._value

    def places(self) -> dict[str, Any]:
        self.get()
        return self._places

    def commit(self) -> None:
        self._access.keep(self._keep)
        self._changed = False


class AsyncPoint(CheckpointPoint):
    """For async handlers."""

    def note_made(self, made: Any, context: FrameType) -> None:
        """Note, with the handler's line, what its context gave it to be awaited."""
        note = getattr(self._access, "note_made", None)  # the test kit's has none
        if note is not None:
            made.__qualname__ = f"ctx.{context.f_code.co_name}"
            note(made, context.f_back)

    @noted
    async def get(self) -> dict[str, Any] | None:
        if not self._known:
            connection = await self._access.session.connection()
            await connection.run_sync(self._learn)
        return self._value

    async def places(self) -> dict[str, Any]:
        await self.get()
        return self._places

    @noted
    async def commit(self) -> None:
        await self._access.keep(self._keep)
        self._changed = False


Checkpoint: TypeAlias = PlainPoint | AsyncPoint


def point_of(run: ActiveRun, access: Access) -> Checkpoint:
    return (AsyncPoint if access.is_async else PlainPoint)(run, access)
