"""Find: an id, a business key, a name or a part of one leads to what is called so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from tasks_app.domain.statistics.unkept import Unkept
from tasks_app.monitor.pages.errors import causes
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.pages import find as rows
from tasks_app.pool.pages.find import Hit
from tasks_app.pool.statistics.unkept import unkept

_MOST_ID = 2**63 - 1
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Hits:
    """What has the text as its id, key or name; then names that contain it."""

    at: datetime
    text: str
    hits: tuple[Hit, ...]
    unkept: Unkept | None = None
    """Successes that left no row; read if nothing is called so."""

    @property
    def only(self) -> Hit | None:
        """The one that is meant: nothing else is called so, or contains the text."""
        exact = [hit for hit in self.hits if hit.exact]
        if len(exact) == 1:
            return exact[0]
        return self.hits[0] if len(self.hits) == 1 else None


def find(connection: Connection, asked: str) -> Hits:
    hits: list[Hit] = []
    if asked.isascii() and asked.isdigit() and int(asked) <= _MOST_ID:
        hits += rows.by_id(connection, int(asked))
    if _FINGERPRINT.fullmatch(asked):
        found = causes(connection, fingerprint=asked)
        hits += [Hit("error", each.fingerprint, each.error, exact=True) for each in found]
    if asked:
        hits += [*rows.by_key(connection, asked), *rows.by_name(connection, asked)]
    gone = unkept(connection) if asked and not hits else None
    return Hits(instant(connection), asked, tuple(hits), gone)
