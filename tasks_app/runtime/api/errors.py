"""What operators do with errors by their fingerprints; nothing here commits.

A mark is noted in the audit, in the same transaction; ``by`` is who wanted it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.tasks.error_text import parse_fingerprint
from tasks_app.pool import error_groups
from tasks_app.pool.error_groups import ErrorGroup, add_missing_fingerprints, find_error_groups
from tasks_app.pool.operations.audit import note as note_action
from tasks_app.pool.tables import database_now
from tasks_app.runtime.db.connections import Raw, Sync, made_async, on_connection


def list_errors(session: Sync | Raw, /, **filters: Any) -> list[ErrorGroup]:
    """Return the error pool grouped by fingerprint, most tasks first.

    ``filters``: ``fingerprint=``, ``name=``, ``queue=``, ``since=``, and ``most=`` (50).

    >>> for group in list_errors(session, name="card.charge"):
    ...     print(group.number, group.error)
    1 ConnectionRefusedError: no bank
    """
    with on_connection(session) as connection:
        return find_error_groups(connection, **filters)


def mark_error_known(
    session: Sync | Raw,
    fingerprint: str,
    *,
    by: str,
    until: datetime | timedelta | None = None,
    note: str = "",
) -> bool:
    """Mark the cause of errors as known, until an instant or for a time. False: none has it.

    >>> fingerprint = list_errors(session)[0].fingerprint
    >>> mark_error_known(session, fingerprint, by="anna", until=timedelta(days=2))
    True

    Raises:
        InvalidSelectionError: the fingerprint is invalid.
    """
    fingerprint = _checked(fingerprint)
    with on_connection(session) as connection:
        at = database_now(connection) + until if isinstance(until, timedelta) else until
        done = error_groups.mark_cause(connection, fingerprint, by, at, note)
        if done:
            what = {"fingerprint": fingerprint, "until": at and at.isoformat(), "note": note}
            note_action(connection, "error known", what, who=by)
    return done


def mark_error_unknown(session: Sync | Raw, fingerprint: str, *, by: str = "") -> bool:
    """Take the mark back. False: there was none.

    >>> mark_error_unknown(session, list_errors(session)[0].fingerprint, by="anna")
    False

    Raises:
        InvalidSelectionError: the fingerprint is invalid.
    """
    fingerprint = _checked(fingerprint)
    with on_connection(session) as connection:
        done = error_groups.unmark_cause(connection, fingerprint)
        if done:
            note_action(connection, "error unknown", {"fingerprint": fingerprint}, who=by)
    return done


def fill_fingerprints(session: Sync | Raw, most: int = 1_000) -> int:
    """Give up to ``most`` errors of older code their fingerprints; return how many got one.

    When none is left, new causes are recorded with the time of their first error.

    >>> while fill_fingerprints(session):
    ...     session.commit()
    """
    with on_connection(session) as connection:
        number = add_missing_fingerprints(connection, most)
        if number < most:
            error_groups.record_new_causes(connection)
    return number


alist_errors: Final = made_async(list_errors)
amark_error_known: Final = made_async(mark_error_known)
amark_error_unknown: Final = made_async(mark_error_unknown)
afill_fingerprints: Final = made_async(fill_fingerprints)


def _checked(fingerprint: str) -> str:
    try:
        return parse_fingerprint(fingerprint).hex()
    except ValueError as error:
        raise InvalidSelectionError(str(error)) from None
