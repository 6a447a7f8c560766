"""One step of a bulk: the next tasks are found, locked, acted on and noted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.encryption import token_of
from tasks_app.domain.errors import InvalidSelectionError, UniqueKeyTakenError, UnreadableTaskError
from tasks_app.domain.large_values.store import reference_of
from tasks_app.domain.operations import (
    AMENDMENT_FIELDS,
    DONE,
    WAITING,
    Amendment,
    Author,
    BulkAction,
    Selection,
    apply_patch,
    check_patched_payload,
    parse_amendment,
    parse_selection,
)
from tasks_app.domain.tasks.payload import decode
from tasks_app.pool.connection.sessions import set_lock_timeout
from tasks_app.pool.operations import audit
from tasks_app.pool.operations.audit import NEXT_AT, OpenBulk
from tasks_app.pool.operations.selection import SelectedTask, SelectionLimits, lock, read_page
from tasks_app.pool.task_groups import lock_groups_of
from tasks_app.pool.tasks.amend import amend, change_payload, spread
from tasks_app.pool.tasks.cancel import cancel_these
from tasks_app.pool.tasks.requeue import requeue
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.large_values import large_values

SHOWN = 1_000
MOST_EDITED = 50
"""Tasks of one step, whose payloads are in memory meanwhile."""
HELD = "another transaction has locked its row"
KEY_TAKEN = "another task has its unique_key"
BROUGHT_FORWARD, UNCHANGED = "brought forward", "unchanged"
_LOCKED = ("55P03", "40P01")
"""SQLSTATEs: lock_not_available, and deadlock_detected."""
_PATIENCE, _HASTE = "1s", "100ms"


@dataclass(slots=True)
class Done:
    """What the steps of one call did."""

    token: int
    answers: Counter[str] = field(default_factory=Counter)
    ids: list[int] = field(default_factory=list)
    """Of the tasks acted on: the first thousand; the audit has all."""
    left_out: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Ids, by reason."""
    more: bool = True
    """There may be more to do: call again with the token."""

    @property
    def number(self) -> int:
        """How many tasks were met: acted on, or left out."""
        return self.answers.total() + sum(map(len, self.left_out.values()))

    def add(self, step: Done) -> None:
        """Add what a committed step did."""
        self.answers += step.answers
        self.ids += step.ids[: SHOWN - len(self.ids)]
        for why, ids in step.left_out.items():
            self.left_out[why] += ids
        self.more = step.more


def read_opening(opening: OpenBulk) -> tuple[BulkAction, Amendment, Selection, SelectionLimits]:
    action = BulkAction(opening.action)
    change, chosen = parted(action, opening.what)
    return action, change, chosen, SelectionLimits(opening.at, opening.until)


def parted(action: BulkAction, words: Mapping[str, Any]) -> tuple[Amendment, Selection]:
    """Return what is changed, and in which tasks; or raise InvalidSelectionError."""
    made = {name: value for name, value in words.items() if name in AMENDMENT_FIELDS}
    which = {name: value for name, value in words.items() if name not in AMENDMENT_FIELDS}
    return parse_amendment(action, made), parse_selection(action, which)


def is_locked(error: DBAPIError) -> bool:
    """Whether another transaction holds a row that we wanted."""
    return getattr(error.orig, "sqlstate", None) in _LOCKED


class BulkStep:
    """One transaction of a bulk, on a connection whose turn it is."""

    def __init__(
        self, connection: Connection, opening: OpenBulk, by: str, registry: Registry
    ) -> None:
        self._connection, self._by = connection, by
        self._action, self._change, self._chosen, self._end = read_opening(opening)
        self._author = Author(by, self._change.why or "")
        self._next_at = opening.next_at
        self._patch, self._registry = opening.patch, registry
        self._done = Done(opening.token)
        self.after: int | None = 0
        """The id behind which to go on; None: that was all."""

    def go(self, after: int, most: int, *, leave_locked: bool) -> Done:
        """Act on the next tasks, and note it; ``leave_locked``: or leave them out if locked."""
        set_lock_timeout(self._connection, _HASTE if leave_locked else _PATIENCE)
        most = min(most, MOST_EDITED) if self._action is BulkAction.EDIT else most
        found, self.after = read_page(self._connection, self._chosen, self._end, after, most)
        ids = [one.id for one in found]
        try:
            with self._connection.begin_nested() if leave_locked else nullcontext():
                if ids:
                    self._act(ids)
        except DBAPIError as error:
            if not (leave_locked and is_locked(error)):
                raise
            self._done = Done(self._done.token, left_out={HELD: ids})
        if ids or self.after is None:  # else a later call reads that stretch again
            audit.note(
                self._connection,
                self._action,
                {NEXT_AT: self._next_at.isoformat()} if self._next_at else None,
                who=self._by,
                bulk=self._done.token,
                after=self.after,
                ids=self._done.ids,
                answers=self._done.answers,
                left_out=self._done.left_out,
            )
        self._done.more = self.after is not None
        return self._done

    def _act(self, ids: list[int]) -> None:
        acts: dict[BulkAction, Callable[[list[SelectedTask]], None]] = {
            BulkAction.CANCEL: self._cancel,
            BulkAction.REQUEUE: self._requeue,
            BulkAction.EDIT: self._edit,
            **dict.fromkeys(WAITING, self._amend),
        }
        if self._action in {BulkAction.CANCEL, BulkAction.REQUEUE}:
            lock_groups_of(self._connection, self._chosen.pool, ids)
        edits = self._action is BulkAction.EDIT
        acts[self._action](lock(self._connection, self._chosen, self._end, ids, payloads=edits))

    def _cancel(self, locked: list[SelectedTask]) -> None:
        done = cancel_these(self._connection, [one.id for one in locked], by=self._author)
        self._done.ids += done.ids
        self._done.answers += Counter(cancelled=done.cancelled, requested=done.requested)

    def _requeue(self, locked: list[SelectedTask]) -> None:
        for one in locked:
            try:
                answer = requeue(self._connection, one.id, by=self._author)
            except UniqueKeyTakenError:
                self._done.left_out[KEY_TAKEN].append(one.id)
            else:
                self._done.ids.append(one.id)
                self._done.answers[str(answer)] += 1

    def _edit(self, locked: list[SelectedTask]) -> None:
        for one in locked:
            try:
                payload = edited_payload(one, self._patch, self._registry)
            except InvalidSelectionError as why:
                self._done.left_out[str(why)].append(one.id)
            else:
                change_payload(
                    self._connection, self._chosen.pool, one.id, payload, by=self._author
                )
                self._done.ids.append(one.id)
                self._done.answers["edited"] += 1

    def _amend(self, locked: list[SelectedTask]) -> None:
        ids, change = [one.id for one in locked], self._change
        if change.gap is None:
            if change.delay is not None:  # all of a bulk have one date
                change = replace(change, at=self._end.at + change.delay, delay=None)
            done = amend(self._connection, self._action, ids, change, by=self._author)
            word = DONE[self._action]
        else:
            done, next_at = spread(
                self._connection, self._action, ids, change.gap, self._next_at, by=self._author
            )
            word = BROUGHT_FORWARD if self._action is BulkAction.RUN_NOW else DONE[self._action]
            self._next_at = next_at or self._next_at
        self._done.ids += done
        self._done.answers += Counter({word: len(done), UNCHANGED: len(ids) - len(done)})


def edited_payload(found: SelectedTask, patch: Mapping[str, Any] | None, registry: Registry) -> str:
    """Return a task's payload with the patch; InvalidSelectionError: why not, without a value."""
    spec = registry.get(found.name)
    if spec is None:
        raise InvalidSelectionError("its handler is not known here")
    try:
        payload = decode(found.payload or "{}", "payload")
    except UnreadableTaskError:
        raise InvalidSelectionError("its payload cannot be read") from None
    if reference_of(payload):
        raise InvalidSelectionError("its payload is too large to be edited")
    if token_of(payload) or spec.encrypted:  # the patch stands in the audit, not encrypted
        raise InvalidSelectionError("its payload is encrypted: edit it in the dashboard")
    return check_patched_payload(
        found.name, apply_patch(payload, patch), spec, large_values().row_limit
    )
