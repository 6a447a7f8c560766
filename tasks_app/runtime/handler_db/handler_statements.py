"""Statements that no handler may send, recognised by their text.

The text is looked at first, since a refused statement leaves nothing behind. What it does not show,
libpq's status shows afterwards (``handler_driver``).
"""

from __future__ import annotations

import re
from functools import lru_cache

COMMITS_LATER = (
    "The handler's transaction commits together with the task's outcome; nothing else may commit "
    "or end it. Use ctx.session.rollback(), savepoints (begin_nested()), or ctx.commit() for what "
    "is to stand whatever becomes of the rest."
)
ENDED = (
    "The handler ended the transaction of ctx.session by itself: what it had written by then may "
    "stand without its outcome. Leave the end to the outcome, or use ctx.commit()."
)
ENDING_TAGS = frozenset({"COMMIT", "BEGIN", "START TRANSACTION", "PREPARE TRANSACTION"})
"""Command tags of what shows that a transaction was ended."""
UNDER_OWN = "_tasks_app_under_own_settings"
"""Says of an error whether its handler had SET something before."""
_LOOKED_AT = 300
"""Characters at the beginning of a statement that are searched for keywords."""
_SEARCHED = 10_000
"""Characters that are looked through for comments before it."""
_ENDS = re.compile(
    r"\s*(commit|end|abort|rollback(?!\s+(work\s+|transaction\s+)?to\b)|prepare\s+transaction)\b",
    re.IGNORECASE,
)
_LASTS = re.compile(r"\A\s*load\b|\bdblink_connect\b", re.IGNORECASE)
_SETS = re.compile(r"\bset_config\b", re.IGNORECASE)
_COPIES = re.compile(r"[\s;]*copy\b", re.IGNORECASE)
_COMMENTS = re.compile(r"/\*(?:(?!/\*|\*/).)*\*/|--[^\n]*", re.DOTALL)
_QUOTED = re.compile(r"'[^'\\]*'|\"[^\"]*\"")
_UNCLEAR = re.compile(r"['\"$]")


def is_under_own_settings(error: BaseException) -> bool:
    """Whether a statement failed after its handler had SET something."""
    return getattr(getattr(error, "orig", None), UNDER_OWN, False)


def _beginning(statement: str) -> str:
    """Return it without comments, which may be nested."""
    before, statement = "", statement[:_SEARCHED]
    while statement != before:
        before, statement = statement, _COMMENTS.sub(" ", statement)
    return statement.lstrip()[:_LOOKED_AT]


@lru_cache(1024)
def ends_transaction(statement: str) -> bool:
    """Whether a string of one or more statements ends the transaction.

    If it has other than plain quotes only its first statement is looked at: a semicolon may be part
    of a function's body.
    """
    beginning = _beginning(statement)
    if _ENDS.match(beginning):
        return True
    if ";" not in statement:
        return False
    bare = _COMMENTS.sub(" ", _QUOTED.sub("''", statement)).replace("''", "")
    return not _UNCLEAR.search(bare) and any(map(_ENDS.match, bare.split(";")))


@lru_cache(1024)
def stays_in_session(statement: str) -> bool:
    """Whether it leaves what no look finds and no reset undoes: libraries, dblink."""
    return _LASTS.search(_beginning(statement)) is not None


@lru_cache(1024)
def copies(statement: str) -> bool:
    """Whether it is a COPY."""
    return _COPIES.match(_beginning(statement)) is not None


def sets_something(statement: str) -> bool:
    """Whether it may change how the next statements are read, or how long they may take."""
    return _SETS.search(statement) is not None
