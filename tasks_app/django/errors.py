"""Errors of Django's connection, as the runtime judges them."""

from __future__ import annotations

from typing import TypeVar

import psycopg

from tasks_app.runtime.db.errors import is_conflict, mark_ours, spares_handlers
from tasks_app.runtime.db.transaction import as_sqlalchemy_raises

E = TypeVar("E", bound=BaseException)


def judged(error: E, *, refused: bool = False) -> BaseException:
    """Return the error, or what SQLAlchemy would have raised, if it is no fault of the task.

    Of these the runtime knows what to do: run the task again, uncharged. All others stay what they
    are, so that handlers' rules and the error pool have Django's names.
    """
    origin = error if isinstance(error, psycopg.Error) else error.__cause__
    if not isinstance(origin, psycopg.Error):
        return error
    known = as_sqlalchemy_raises(origin)
    if not (spares_handlers(known) or is_conflict(known)):
        mark_ours(error, refused=False)
        return error
    mark_ours(known, refused=refused)
    return known
