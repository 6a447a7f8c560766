"""Groups: tasks that are waited for together. Nothing here commits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from sqlalchemy import Connection

from tasks_app.domain.creation import NewTask, check_many
from tasks_app.domain.errors import InvalidTaskError, TasksError
from tasks_app.domain.groups import Ended, Group, GroupProgress, checked_group, member_row
from tasks_app.domain.operations import BulkAction, check_author
from tasks_app.domain.tasks.options import check_id
from tasks_app.domain.tasks.records import TaskId, TaskRow
from tasks_app.pool import task_groups
from tasks_app.pool.connection.execute import commits_itself
from tasks_app.pool.operations.audit import note
from tasks_app.pool.tasks.cancel import CancelledMany, cancel_these
from tasks_app.runtime.api.producer import admitted, admitted_many, create_ready, ready
from tasks_app.runtime.db.connections import (
    Async,
    AsyncRaw,
    Raw,
    Sync,
    connection_of,
    made_async,
    on_connection,
)
from tasks_app.runtime.encryption.values import opened_result

PAGE = 1_000
"""Results that an async caller is given without a change of greenlets."""


def create_group(
    session: Sync | Raw,
    tasks: Sequence[NewTask],
    *,
    then: NewTask | None = None,
    on_failure: NewTask | None = None,
    enough: int | None = None,
    fail_fast: bool = False,
    part_of: int | None = None,
) -> Group:
    """Create tasks that are waited for together; the end of the last one creates the callback.

    ``then`` is created when all have succeeded (SUCCEEDED or SKIPPED), else ``on_failure``, in the
    transaction that ends the last of them. With ``enough``, ``then`` is created as soon as so many
    have succeeded; with ``fail_fast``, ``on_failure`` as soon as one has failed. Tasks that still
    run then go on. The callback's headers are ``group_id``, ``succeeded`` and ``failed``.

    ``part_of`` is a group that waits for the callback of this one as for a member: until the
    caller's transaction ends, no end of its members can be counted.

    >>> mails = [NewTask(send_mail, {"to": f"{n}@example.org"}) for n in range(2)]
    >>> group = create_group(session, mails, then=NewTask("mails.sent"))
    >>> len(group.task_ids)
    2

    Raises:
        InvalidTaskError: refused before anything was written, with the path of the bad value.
        UniqueKeyTakenError: a member's unique_key is taken; then nothing is written.
        TasksError: ``part_of`` is over, or each statement commits by itself.
    """
    check_many(tasks)
    made = checked_group(
        len(tasks),
        _callback("then", then),
        _callback("on_failure", on_failure),
        enough=enough,
        fail_fast=fail_fast,
        part_of=part_of,
    )
    rows = admitted_many(tasks)
    with on_connection(session) as connection:
        if commits_itself(connection):
            raise TasksError(
                "create_group needs a transaction: here its members would exist, and might end, "
                "before it does. Use a connection without AUTOCOMMIT."
            )
        group_id, callback_id = task_groups.take_group_ids(connection, made)
        ids = _members(session, ready(rows), group_id)
        task_groups.insert_group(connection, group_id, callback_id, made, ids)
    return Group(group_id, ids, callback_id)


def extend_group(session: Sync | Raw, group_id: int, tasks: Sequence[NewTask]) -> list[TaskId]:
    """Add tasks to a group; until the caller commits, no end of its members can be counted.

    >>> group = create_group(session, [NewTask(send_mail, {"to": "a@example.org"})])
    >>> more = extend_group(session, group.id, [NewTask(send_mail, {"to": "b@example.org"})])
    >>> get_group(session, group.id).total
    2

    Raises:
        InvalidTaskError: refused before anything was written, with the path of the bad value.
        UniqueKeyTakenError: a task's unique_key is taken.
        TasksError: the group is over or unknown. Roll back: the tasks are written.
    """
    check_many(tasks)
    rows = ready(admitted_many(tasks))
    with on_connection(session) as connection:
        ids = _members(session, rows, check_id(group_id, "group_id"))
        if ids:
            task_groups.extend_group(connection, group_id, ids)
    return ids


def get_group(session: Sync, group_id: int) -> GroupProgress | None:
    """Return the progress of a group, or None.

    >>> group = create_group(session, [NewTask(send_mail, {"to": "a@example.org"})])
    >>> progress = get_group(session, group.id)
    >>> progress.succeeded, progress.total
    (0, 1)
    """
    return task_groups.get_group(connection_of(session), check_id(group_id, "group_id"))


def group_results(session: Sync, group_id: int) -> Iterator[Ended]:
    """Return how a group's members ended, in the order in which they were created.

    A thousand are in memory at a time. Those that retention has removed are left out.

    >>> group = create_group(session, [NewTask(send_mail, {"to": "a@example.org"})])
    >>> drained = drain(session)
    >>> [ended.result for ended in group_results(session, group.id)]
    [{'sent': 'a@example.org'}]

    Raises:
        TasksError: there is no such group.
    """
    connection = connection_of(session)
    ended = task_groups.member_results(connection, _known(connection, group_id))
    return (replace(each, result=opened_result(each.result, each.name)) for each in ended)


def cancel_group(session: Sync, group_id: int, *, by: str = "", why: str = "") -> CancelledMany:
    """Cancel the members that have not ended; running ones are interrupted.

    They count as failed in a group that is not over.

    >>> group = create_group(session, [NewTask(send_mail, {"to": "a@example.org"})])
    >>> cancel_group(session, group.id, by="anna").cancelled
    1

    Raises:
        TasksError: there is no such group.
    """
    connection, wanted = connection_of(session), check_author(by, why)
    _known(connection, group_id)
    ids: tuple[int, ...] = ()
    cancelled = requested = 0
    for page in [*task_groups.member_pages(connection, group_id)]:  # not those that this adds
        done = cancel_these(connection, page, by=wanted)
        ids += done.ids
        cancelled, requested = cancelled + done.cancelled, requested + done.requested
    if ids:
        answers = {"cancelled": cancelled, "requested": requested}
        what = {"group": group_id, **wanted.reason}
        note(connection, BulkAction.CANCEL, what, who=by, number=len(ids), ids=ids, answers=answers)
    return CancelledMany(cancelled, requested, ids)


acreate_group: Final = made_async(create_group)
aextend_group: Final = made_async(extend_group)
aget_group: Final = made_async(get_group)
acancel_group: Final = made_async(cancel_group)


async def agroup_results(session: Async | AsyncRaw, group_id: int) -> AsyncIterator[Ended]:
    """Yield how a group's members ended, as :func:`group_results`, in an async transaction."""
    ended = await _a_results(session, group_id)
    while page := await _a_page(session, ended):
        for each in page:
            yield each


def _page(_: Sync, ended: Iterator[Ended]) -> list[Ended]:
    return list(islice(ended, PAGE))


_a_results: Final = made_async(group_results)
_a_page: Final = made_async(_page)


def _known(connection: Connection, group_id: int) -> GroupProgress:
    found = task_groups.get_group(connection, check_id(group_id, "group_id"))
    if found is None:
        raise TasksError(f"There is no group {group_id}. It may have been over for long.")
    return found


def _members(session: Sync | Raw, rows: Sequence[TaskRow], group_id: int) -> list[TaskId]:
    members = []
    for place, row in enumerate(rows):
        try:
            members.append(member_row(row, group_id))
        except InvalidTaskError as error:
            raise error.at(f"tasks[{place}]") from None
    return create_ready(session, members) if members else []


def _callback(which: str, new: NewTask | None) -> TaskRow | None:
    if new is None:
        return None
    if not isinstance(new, NewTask):
        raise InvalidTaskError(which, f"is of type {type(new).__name__}", "a NewTask")
    try:
        return ready([admitted(new)])[0]
    except InvalidTaskError as error:
        raise error.at(which) from None
