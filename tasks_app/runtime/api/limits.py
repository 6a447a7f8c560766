"""What operators call for limits, fair queues, order keys and locks; nothing here commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from sqlalchemy import Connection

from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.flow_control.limits import Limit, checked_target, limit_of
from tasks_app.domain.tasks.options import check_id, check_queue
from tasks_app.pool.flow_control import order_and_limits
from tasks_app.pool.flow_control.fair_queues import set_fair, unset_fair
from tasks_app.pool.flow_control.order_and_limits import unblock
from tasks_app.pool.locks import holders as locks
from tasks_app.pool.locks.acquire import look_soon
from tasks_app.pool.operations.audit import note
from tasks_app.runtime.db.connections import Sync, connection_of, made_async


def set_limit(
    session: Sync,
    kind: str,
    target: str,
    *,
    most: int | None = None,
    rate: str | None = None,
    burst: int | None = None,
    by: str = "",
) -> Limit:
    """Limit a ``queue``, a ``name``, or limit keys (``key``); replace the limit set before.

    ``most`` run at a time. By ``rate``, such as ``100/1m``, so many start in each period, and
    ``burst`` of them at once; default: as many as the rate allows in a second.

    >>> limit = set_limit(session, "queue", "mails", most=5)
    >>> limit = set_limit(session, "key", "tenant:*", rate="100/1m", burst=10)
    >>> create_task(session, send_mail, {"to": "a@example.org"}, limit_key="tenant:7").created
    True

    Raises:
        InvalidTaskError: it limits nothing, or is out of range.
    """
    connection, limit = connection_of(session), limit_of(kind, target, most, rate, burst)
    order_and_limits.set_limit(connection, limit)
    what = {"kind": kind, "target": target, "most": most, "rate": rate, "burst": limit.burst}
    note(connection, "set limit", what, who=by)
    return limit


def drop_limit(session: Sync, kind: str, target: str, *, by: str = "") -> bool:
    """Remove a limit. False: there was none.

    >>> limit = set_limit(session, "queue", "mails", most=5)
    >>> drop_limit(session, "queue", "mails")
    True

    Raises:
        InvalidTaskError: there cannot be one.
    """
    connection = connection_of(session)
    dropped = order_and_limits.drop_limit(connection, *checked_target(kind, target))
    if dropped:
        note(connection, "drop limit", {"kind": kind, "target": target}, who=by)
    return dropped


def list_limits(session: Sync) -> list[Limit]:
    """Return all limits.

    >>> limit = set_limit(session, "queue", "mails", most=5)
    >>> [(limit.target, limit.most) for limit in list_limits(session)]
    [('mails', 5)]
    """
    return order_and_limits.all_limits(connection_of(session))


def share_queue(
    session: Sync, queue: str, weights: Mapping[str, float] | None = None, *, by: str = ""
) -> None:
    """Let a queue's tasks go by shares of their ``fair_key``; keys without a weight have 1."""
    connection, given = connection_of(session), dict(weights or {})
    for key, weight in given.items():
        if not 0.001 <= weight <= 1000:  # noqa: PLR2004  more is a typing error
            raise InvalidTaskError(f"weights.{key}", f"is {weight}", "0.001 .. 1000")
    set_fair(connection, check_queue(queue), given)
    note(connection, "share", {"queue": queue, "weights": given}, who=by)


def unshare_queue(session: Sync, queue: str, *, by: str = "") -> bool:
    """Let a queue's tasks go by priority and age alone again; False: they do so already."""
    connection = connection_of(session)
    changed = unset_fair(connection, queue)
    if changed:
        note(connection, "unshare", {"queue": queue}, who=by)
    return changed


def unblock_task(session: Sync, task_id: int, *, by: str = "") -> bool:
    """Let tasks go on that wait behind a failed task of their order key. False: none waits.

    >>> unblock_task(session, failed_id, by="anna")
    False
    """
    connection, task_id = connection_of(session), check_id(task_id)
    unblocked = unblock(connection, task_id)
    if unblocked:
        note(connection, "unblock", who=by, ids=[task_id], answers={"unblocked": 1})
    return unblocked


aset_limit: Final = made_async(set_limit)
adrop_limit: Final = made_async(drop_limit)
alist_limits: Final = made_async(list_limits)
aunblock_task: Final = made_async(unblock_task)


def free_lock(
    connection: Connection, resource: str, token: UUID | None = None, *, by: str = ""
) -> list[str]:
    """Take a resource from all groups that hold it, or from one; return their holders."""
    whose = locks.free_resource(connection, resource, token)
    if whose:
        look_soon(connection, [resource])
        note(connection, "free lock", {"resource": resource, "holders": whose}, who=by)
    return whose


def limit_lock(connection: Connection, resource: str, most: int | None, *, by: str = "") -> None:
    """Set how many may hold a counted resource, over what code gives; None: as code gives."""
    locks.limit_resource(connection, resource, most)
    look_soon(connection, [resource])
    note(connection, "limit lock", {"resource": resource, "most": most}, who=by)
