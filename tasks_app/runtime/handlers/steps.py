"""Kept steps of a handler: a commit keeps each result, and later attempts get it back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from inspect import isawaitable
from math import inf
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection

from tasks_app.domain.flows import check_name
from tasks_app.domain.handlers.outcomes import Snooze
from tasks_app.domain.tasks.payload import decode, encode
from tasks_app.pool.tasks.run_records import read_steps
from tasks_app.runtime.db.connections import noted
from tasks_app.runtime.db.transaction import Access
from tasks_app.runtime.encryption.encryption import RESULT, encryption
from tasks_app.runtime.encryption.values import opened_value
from tasks_app.runtime.handlers.checkpoint import ActiveRun, AwaitedPart
from tasks_app.runtime.large_values import large_values


class KnownStep(NamedTuple):
    result: Any
    since: float  # by time.monotonic


class RunSteps:
    """Of one call of a handler; ``given``: the results that a made context is to have."""

    def __init__(
        self,
        run: ActiveRun,
        access: Access,
        point: Any,  # a Checkpoint, of the kind that fits the access
        given: Mapping[str, Any] | None = None,
    ) -> None:
        self._run = run
        self._access = access
        self._point = point
        self._entered: set[str] = set()
        self._known = {name: KnownStep(result, -inf) for name, result in (given or {}).items()}
        self._is_read = given is not None or run.is_first

    def _enter(self, name: str) -> None:
        check_name(name, "step")
        if name in self._entered:
            raise ValueError(f"This run has a step named {name!r} already. Give each its own name.")
        self._entered.add(name)

    def _read(self, connection: Connection) -> None:
        task = self._run.task
        found, now = read_steps(connection, task.task_id), time.monotonic()
        for name, result, age_s in found:
            self._known[name] = KnownStep(opened_value(result, RESULT, task.name), now - age_s)
        self._is_read = True

    def _written(self, name: str, value: Any) -> tuple[str, str]:
        """Return what is to be kept; both paths give what is read from JSON."""
        text = encode(value, f"steps.{name}", large_values().result_row_limit)
        self._known[name] = KnownStep(decode(text, RESULT), time.monotonic())
        if self._run.is_secret:
            text = encryption().sealed(text, RESULT, self._run.task.name)
        return name, text

    def _wait(self, name: str) -> None:
        """Raise Snooze if the sleep is not over."""
        seconds, since = self._known[name]
        left_s = since + (seconds or 0) - time.monotonic()
        if left_s > 0:
            raise asleep(timedelta(seconds=left_s), name)


def asleep(span: timedelta, name: str) -> Snooze:
    return Snooze(span, f"It sleeps: {name}.")


class PlainSteps(RunSteps):
    def step(self, name: str, call: Callable[[], Any]) -> Any:
        self._enter(name)
        if not self._is_read:
            self._access.read(self._read)
        if name not in self._known:
            with self._point.step(name):
                value = call()
            self._point.commit(self._written(name, value))
        return self._known[name].result

    def sleep(self, span: timedelta, name: str) -> None:
        self._enter(name)
        if not self._is_read:
            self._access.read(self._read)
        if name not in self._known:
            self._point.commit(self._written(name, span.total_seconds()))
            raise asleep(span, name)
        self._wait(name)


class AsyncSteps(AwaitedPart, RunSteps):
    @noted
    async def step(self, name: str, call: Callable[[], Any]) -> Any:
        self._enter(name)
        if not self._is_read:
            await self._access.read(self._read)
        if name not in self._known:
            with self._point.step(name):
                value = call()
                if isawaitable(value):
                    value = await value
            await self._point.commit(self._written(name, value))
        return self._known[name].result

    @noted
    async def sleep(self, span: timedelta, name: str) -> None:
        self._enter(name)
        if not self._is_read:
            await self._access.read(self._read)
        if name not in self._known:
            await self._point.commit(self._written(name, span.total_seconds()))
            raise asleep(span, name)
        self._wait(name)


Steps: TypeAlias = PlainSteps | AsyncSteps


def steps_of(
    run: ActiveRun, access: Access, point: Any, given: Mapping[str, Any] | None = None
) -> Steps:
    return (AsyncSteps if access.is_async else PlainSteps)(run, access, point, given)
