"""Statements that a handler sends through Django, looked at before they are sent."""

from __future__ import annotations

import re
from functools import lru_cache

from tasks_app.runtime.handler_db.handler_statements import ends_transaction, stays_in_session

COMMITS_LATER = (
    "The transaction of a handler commits together with the task's outcome, when the handler has "
    "returned. Use ctx.commit() for what is to stand whatever becomes of the rest."
)
_KEEPS = re.compile(
    r"\A\s*(set\s+(?!constraints|transaction)|listen\b|prepare\b|declare\b.*\bwith\s+hold\b"
    r"|create\s+((global|local)\s+)?temp)|\b(set_config|pg_(try_)?advisory_lock\w*)\s*\(",
    re.IGNORECASE | re.DOTALL,
)
_COMMENTS = re.compile(r"/\*.*?\*/|--[^\n]*", re.DOTALL)


def refuse_an_end(statement: str) -> None:
    """Refuse a statement that ends the transaction.

    Raises:
        RuntimeError: it does.
    """
    if ends_transaction(statement):
        raise RuntimeError(COMMITS_LATER)


@lru_cache(1024)
def keeps_something(statement: str) -> bool:
    """Whether something may stay in the session: a setting, a lock, a temporary table."""
    bare = _COMMENTS.sub(" ", statement)
    return _KEEPS.search(bare) is not None or stays_in_session(statement)
