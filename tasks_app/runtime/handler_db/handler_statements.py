"""What statements of handlers say that no handler may, as far as their words tell.

Words come first, since what is refused leaves nothing behind. What hides from them is judged by
what libpq says afterwards (``handler_connections``).
"""

from __future__ import annotations

import re
from functools import lru_cache

COMMITS_LATER = (
    "ctx.session commits together with the task's outcome, when the handler has returned. "
    "Use flush(), or ctx.commit() for what is to stand whatever becomes of the rest."
)
_LOOKED_AT = 300
"""Characters at the beginning of a statement in which keywords are looked for."""
_ENDS = re.compile(
    r"\s*(commit|end|abort|rollback(?!\s+(work\s+|transaction\s+)?to\b)|prepare\s+transaction)\b",
    re.IGNORECASE,
)
_LASTS = re.compile(r"\A\s*load\b|\bdblink_connect\b", re.IGNORECASE)
_COMMENTS = re.compile(r"/\*.*?\*/|--[^\n]*", re.DOTALL)
_QUOTED = re.compile(r"'[^'\\]*'|\"[^\"]*\"")
_UNCLEAR = re.compile(r"['\"$]")


@lru_cache(1024)
def ends_transaction(statement: str) -> bool:
    """Tell whether a string of one or more statements ends the transaction.

    Where a quote is not a plain one only the first statement is looked at: a semicolon may stand in
    a function's body.
    """
    beginning = _COMMENTS.sub(" ", statement[:_LOOKED_AT])
    if _ENDS.match(beginning):
        return True
    if ";" not in statement:
        return False
    bare = _COMMENTS.sub(" ", _QUOTED.sub("''", statement)).replace("''", "")
    return not _UNCLEAR.search(bare) and any(map(_ENDS.match, bare.split(";")))


@lru_cache(1024)
def stays_in_session(statement: str) -> bool:
    """Tell whether it leaves what no look finds and no reset takes back: libraries, dblink."""
    return _LASTS.search(_COMMENTS.sub(" ", statement[:_LOOKED_AT])) is not None
