"""What a check may look at, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from shop.diary import Diary
from shop.figures import ask


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a check may look at."""

    connection: Connection
    diary: Diary
    mails: Mapping[tuple[str, str], int]
    """How often the mail server accepted each (about, idempotency key)."""

    def rows(self, sql: str, **values: object) -> list[Any]:
        """Ask the database about today."""
        return ask(self.connection, self.diary, sql, **values)

    def keys_of_mails_about(self, about: str) -> set[str]:
        """Return the idempotency keys under which mails about this were accepted."""
        return {key for topic, key in self.mails if topic == about}

    def number(self, sql: str, **values: object) -> int:
        """Ask for one number."""
        [(number,)] = self.rows(sql, **values)
        return int(number)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found."""

    holds: bool
    claim: str
    figure: str
