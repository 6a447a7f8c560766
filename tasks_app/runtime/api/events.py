"""Events that tasks wait for: sent and read. Nothing here commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tasks_app.domain.events import StoredEvent, check_event_key
from tasks_app.domain.operations import check_author
from tasks_app.domain.tasks.payload import Payload, encode_object
from tasks_app.pool import events
from tasks_app.runtime.db.connections import Raw, Sync, connection_of, made_async, on_connection
from tasks_app.runtime.large_values import large_values


def send_event(
    session: Sync | Raw, key: str, payload: Payload = None, *, by: str = "", why: str = ""
) -> bool:
    """Send an event in the caller's transaction: what waits for it goes on iff that commits.

    The first one with a key counts. One that is sent before anybody waits counts, too; it is kept
    for ``TASKS_APP_KEEP_EVENTS``. Until the transaction ends, no end of a step in a flow that waits
    for it can be counted.

    >>> flow = Flow("order")
    >>> approved = event("order:7/approved", timeout="2d")
    >>> ship = flow.step("ship", send_mail, {"to": "shop@example.org"}, needs=approved)
    >>> made = create_flow(session, flow)
    >>> send_event(session, "order:7/approved", {"limit": 100}, by="anna")
    True
    >>> send_event(session, "order:7/approved", {"limit": 900})
    False

    Args:
        session: what create_task takes.
        key: the name that the waiting tasks know.
        payload: for ``ctx.event``, as the payload of a task; stored as it is, never encrypted.
        by: who sends it.
        why: the reason.

    Returns:
        Whether it counts; False: one was sent before, and nothing is changed.

    Raises:
        InvalidTaskError: refused before anything was written.
        InvalidSelectionError: the reason cannot be stored.
    """
    check_event_key(key)
    author = check_author(by, why)
    value = encode_object(payload, "event.payload", large_values().row_limit)
    with on_connection(session) as connection:
        return events.send(connection, key, value, author.who, author.why)


def get_event(session: Sync, key: str) -> StoredEvent | None:
    """Return an event that was sent, or that tasks wait for; None: it is neither.

    >>> sent = send_event(session, "order:7/approved", by="anna")
    >>> get_event(session, "order:7/approved").by
    'anna'
    """
    found = events.find(connection_of(session), 1, key=check_event_key(key))
    return found[0] if found else None


def list_events(session: Sync, *, waiting: bool = False, limit: int = 100) -> Sequence[StoredEvent]:
    """Return events that tasks wait for, the longest wait first; then those sent, newest first.

    ``waiting``: only those that tasks wait for.

    >>> flow = Flow("order")
    >>> _ = flow.step("ship", send_mail, {"to": "a@example.org"}, needs=event("order:7/approved"))
    >>> made = create_flow(session, flow)
    >>> [(each.key, each.waiting) for each in list_events(session, waiting=True)]
    [('order:7/approved', 1)]
    """
    return events.find(connection_of(session), limit, waiting=waiting)


asend_event: Final = made_async(send_event)
aget_event: Final = made_async(get_event)
alist_events: Final = made_async(list_events)
