"""Groups: tasks with one outcome, and the callback that runs when all of them have ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.tasks.options import check_integer
from tasks_app.domain.tasks.records import KeyRule, OnConflict, TaskId, TaskRow
from tasks_app.domain.tasks.states import State

_SHARED = (  # columns of a callback that its row template has under the same names
    *("name", "queue", "priority", "enabled", "retry_level", "max_attempts", "retry"),
    *("timeout_ms", "hard_timeout_ms", "order_skips", "fair_key", "more_limit_keys", "weight"),
)


@dataclass(frozen=True, slots=True)
class Group:
    """A group that was just created."""

    id: int
    task_ids: list[TaskId]  # of its members, in the order in which they were given
    callback_id: int | None  # of the callback, after either end; None: there is none


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The progress of a group. Members that end after it succeeded are not counted."""

    id: int
    total: int
    succeeded: int
    failed: int
    enough: int | None
    fail_fast: bool
    outcome: State | None  # SUCCEEDED or FAILED, at `counted_at`; None: not over
    callback_id: int | None
    part_of: int | None  # the group that waits for this one's callback
    created_at: datetime
    counted_at: datetime  # when the last member was counted
    flow: str | None = None  # the name of the flow whose steps the members are

    @property
    def left(self) -> int:
        return self.total - self.succeeded - self.failed


@dataclass(frozen=True, slots=True)
class Ended:
    """A member, as :func:`group_results` returns it."""

    task_id: int
    state: State
    result: Any  # what its handler returned; None also while it has not ended
    error: str | None
    name: str  # the task's


class StartedTask(NamedTuple):
    """A callback, or a step of a flow, that ends have made due: a hint may follow the commit."""

    id: int
    queue: str
    wait_s: float  # seconds until it is due


class GroupRow(NamedTuple):
    """A checked group, ready for the insert; callbacks are rows of the pending pool as JSON."""

    total: int
    enough: int | None
    fail_fast: bool
    then_row: str | None
    on_failure: str | None
    part_of: int | None

    @property
    def calls(self) -> bool:
        return self.then_row is not None or self.on_failure is not None


def checked_group(
    total: int,
    then: TaskRow | None,
    on_failure: TaskRow | None,
    *,
    enough: Any,
    fail_fast: bool,
    part_of: int | None,
) -> GroupRow:
    """Return the checked group; raises InvalidTaskError."""
    if enough is not None:
        check_integer(enough, "enough", 1, total)
        if fail_fast:
            raise InvalidTaskError("fail_fast", "is given together with enough", "one of the two")
    if part_of is not None and (then is None or on_failure is None):
        allowed = "it together with then= and on_failure="
        raise InvalidTaskError("part_of", "needs a task for both outcomes", allowed)
    callbacks = _callback("then", then), _callback("on_failure", on_failure)
    return GroupRow(total, enough, bool(fail_fast), *callbacks, part_of)


def member_row(row: TaskRow, group_id: int) -> TaskRow:
    """Return a member's row; an existing task cannot become a member, so a taken key is an error.

    Raises InvalidTaskError: the row has another ``on_conflict``.
    """
    rule = row.terms.rule
    if row.unique_key is not None:
        fitting = (OnConflict.RETURN_EXISTING, OnConflict.RAISE)
        if rule is not None and rule.on_conflict not in fitting:
            problem = f"is {rule.on_conflict} in a group"
            raise InvalidTaskError("options.on_conflict", problem, OnConflict.RAISE)
        rule = (rule or KeyRule())._replace(on_conflict=OnConflict.RAISE)
    return row._replace(terms=row.terms._replace(batch_id=group_id, rule=rule))


def _callback(which: str, row: TaskRow | None) -> str | None:
    if row is None:
        return None
    if row.unique_key is not None:
        allowed = "nothing: a group calls once, and a taken key would stop it"
        raise InvalidTaskError(f"{which}.options.unique_key", "is given", allowed)
    if row.terms.strict_order:
        allowed = "nothing: a callback takes no turns"
        raise InvalidTaskError(f"{which}.options.strict_order", "is given", allowed)
    terms = row.terms
    columns = {name: getattr(terms, name) for name in _SHARED} | {
        "biz_key": row.biz_key,
        "order_key": row.order_key,
        "limit_key": row.limit_key,
        "due_at": terms.run_at and terms.run_at.isoformat(),
        "delay": terms.delay.total_seconds(),
        "expires_at": terms.expires_at and terms.expires_at.isoformat(),
    }
    columns["locks"] = terms.locks and json.loads(terms.locks)
    given = json.dumps({name: value for name, value in columns.items() if value is not None})
    return f'{given[:-1]}, "payload": {row.payload}, "headers": {terms.headers or "null"}}}'
