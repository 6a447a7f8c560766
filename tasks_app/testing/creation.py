"""Which tasks were created, as the transaction of the test sees it, committed or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from sqlalchemy import Connection

from tasks_app.domain.handlers.spec import Handler
from tasks_app.domain.tasks.records import Task
from tasks_app.pool.tasks import browse
from tasks_app.runtime.api.tasks import in_full
from tasks_app.runtime.db.connections import (
    Async,
    AsyncRaw,
    Raw,
    Sync,
    made_async,
    on_connection,
)
from tasks_app.testing.expectation import Expectation, Where, described, expectation

MOST_READ = 100_000
MOST_SHOWN = 20
Test = Callable[[Task], object]


def created(
    session: Sync | Raw,
    task: Handler[Any, Any] | str | None = None,
    payload: Any = ...,
    *,
    test: Test | None = None,
    **where: Unpack[Where],
) -> list[Task]:
    """Return the tasks that ``session`` sees and that are as said, oldest first.

    ``session`` is what ``create_task`` takes; the tasks need not be committed. They may be in any
    pool: after a drain they are found as well. A dict as ``payload`` (or as ``headers``) must be
    contained in that of the task; ``test`` is a function that says whether a task fits.

    >>> task_id = create_task(session, send_mail, {"to": "b@example.org"}, delay="1h")
    >>> (task,) = created(session, "mail.send", {"to": "b@example.org"}, delay="1h")
    """
    expected = expectation(task, payload, where, test)
    return _matching(_all(session), expected)


def assert_created(
    session: Sync | Raw,
    task: Handler[Any, Any] | str | None = None,
    payload: Any = ...,
    *,
    count: int | None = None,
    test: Test | None = None,
    **where: Unpack[Where],
) -> list[Task]:
    """Assert that such tasks were created: ``count`` of them, or at least one. Return them.

    The arguments are those of :func:`created`. ``count=0``: none was.

    >>> task_id = create_task(session, send_mail, {"to": "b@example.org"}, queue="mails")
    >>> tasks = assert_created(session, send_mail, {"to": "b@example.org"}, count=1, queue="mails")

    Raises:
        AssertionError: it says what was created instead.
    """
    expected = expectation(task, payload, where, test)
    return _asserted(_all(session), expected, count)


async def acreated(
    session: Async | AsyncRaw,
    task: Handler[Any, Any] | str | None = None,
    payload: Any = ...,
    *,
    test: Test | None = None,
    **where: Unpack[Where],
) -> list[Task]:
    """Do as :func:`created`, in an async transaction."""
    expected = expectation(task, payload, where, test)
    return _matching(await _aall(session), expected)


async def aassert_created(
    session: Async | AsyncRaw,
    task: Handler[Any, Any] | str | None = None,
    payload: Any = ...,
    *,
    count: int | None = None,
    test: Test | None = None,
    **where: Unpack[Where],
) -> list[Task]:
    """Do as :func:`assert_created`, in an async transaction."""
    expected = expectation(task, payload, where, test)
    return _asserted(await _aall(session), expected, count)


def _all(session: Sync | Raw) -> list[Task]:
    return on_connection(session, _found)


def _found(connection: Connection) -> list[Task]:
    found = browse.find(connection, most=MOST_READ)[::-1]
    return [in_full(connection, task) for task in found]


_aall = made_async(_all)


def _matching(tasks: Sequence[Task], expected: Expectation) -> list[Task]:
    return [task for task in tasks if expected.is_met_by(task)]


def _asserted(tasks: Sequence[Task], expected: Expectation, count: int | None) -> list[Task]:
    found = _matching(tasks, expected)
    if len(found) == count or (count is None and found):
        return found
    wanted = "at least 1" if count is None else str(count)
    raise AssertionError(
        f"{len(found)} instead of {wanted} were created of {expected}. {_said(tasks, expected)}"
    )


def _said(tasks: Sequence[Task], expected: Expectation) -> str:
    """Say what was created: those of the name first."""
    if not tasks:
        return "Nothing was created."
    near = sorted(tasks, key=lambda task: (task.name != expected.name, task.id))
    lines = [f"  {described(task)}" for task in near[:MOST_SHOWN]]
    if len(near) > MOST_SHOWN:
        lines.append(f"  and {len(near) - MOST_SHOWN} more")
    return "\n".join(["Created were:", *lines])
