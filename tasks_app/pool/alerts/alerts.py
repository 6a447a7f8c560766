"""Alerts: each change is a compare-and-set, so that of several watchers one wins."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.pool.tables import ALERT, FINGERPRINT

SEND_WITHIN = timedelta(minutes=1)
"""A message that is not marked as sent by then is sent again, by whoever looks."""
NEW_FOR = timedelta(hours=1)
"""An older first sighting is no news: the first watcher of a full pool would tell of each."""

_OPEN = text(f"""
    INSERT INTO {ALERT} (key, fact, advice) VALUES (:key, :fact, :advice)
    ON CONFLICT (key) WHERE closed_at IS NULL DO NOTHING
""")
_CLOSE = text(f"""
    UPDATE {ALERT} SET closed_at = statement_timestamp(), sending_until = '-infinity'
    WHERE key = :key AND closed_at IS NULL
""")
_OPEN_KEYS = text(f"SELECT key FROM {ALERT} WHERE closed_at IS NULL")
_NEWS = text(f"""
    INSERT INTO {ALERT} (key, fact, advice, event, closed_at)
    SELECT 'new-error:' || encode(f.fingerprint, 'hex'), 'a new error: ' || f.kind,
        'tasks-app errors show ' || encode(f.fingerprint, 'hex'), true, statement_timestamp()
    FROM {FINGERPRINT} f
    WHERE encode(f.fingerprint, 'hex') = ANY(CAST(:fingerprints AS text[]))
      AND f.first_at > statement_timestamp() - CAST(:new_for AS interval)
""")
_DUE = """(opened_sent_at IS NULL AND (event OR closed_at IS NULL)
        OR NOT event AND opened_sent_at IS NOT NULL AND closed_at IS NOT NULL
           AND closed_sent_at IS NULL)"""
_TAKE = text(f"""
    WITH due AS MATERIALIZED (
        SELECT id FROM {ALERT} WHERE sending_until <= statement_timestamp() AND {_DUE}
        ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
    UPDATE {ALERT} a SET sending_until = statement_timestamp() + CAST(:within AS interval)
    FROM due WHERE a.id = due.id
    RETURNING a.id, a.key, a.fact, a.advice, a.opened_sent_at IS NOT NULL AS over
""")
_SENT = {
    False: text(f"""
        UPDATE {ALERT} SET opened_sent_at = statement_timestamp(), sending_until = '-infinity'
        WHERE id = :id AND opened_sent_at IS NULL
    """),
    True: text(f"""
        UPDATE {ALERT} SET closed_sent_at = statement_timestamp(), sending_until = '-infinity'
        WHERE id = :id AND closed_sent_at IS NULL
    """),
}
_FIND = text(f"""
    SELECT id, key, fact, advice, event, opened_at, closed_at, opened_sent_at, closed_sent_at
    FROM {ALERT} ORDER BY closed_at IS NULL DESC, id DESC LIMIT :most
""")


@dataclass(frozen=True, slots=True)
class Notice:
    """A message that whoever holds this, and nobody else, has to send."""

    id: int
    key: str
    fact: str
    advice: str
    over: bool


@dataclass(frozen=True, slots=True)
class AlertRow:
    """An alert as operators see it."""

    id: int
    key: str
    fact: str
    advice: str
    event: bool
    opened_at: datetime
    closed_at: datetime | None
    opened_sent_at: datetime | None
    closed_sent_at: datetime | None


def open_alert(connection: Connection, key: str, fact: str, advice: str) -> bool:
    """False: it is open already."""
    values = {"key": key, "fact": fact, "advice": advice}
    return connection.execute(_OPEN, values).rowcount > 0


def close_alert(connection: Connection, key: str) -> bool:
    """False: it is not open any more."""
    return connection.execute(_CLOSE, {"key": key}).rowcount > 0


def open_keys(connection: Connection) -> set[str]:
    return set(connection.execute(_OPEN_KEYS).scalars())


def tell_news(connection: Connection, fingerprints: list[str]) -> int:
    """Open an event for each; in the transaction that entered them, so that none is lost."""
    values = {"fingerprints": fingerprints, "new_for": NEW_FOR}
    return connection.execute(_NEWS, values).rowcount


def take_notice(connection: Connection, within: timedelta = SEND_WITHIN) -> Notice | None:
    """Return a message to send once this is committed; None: there is none."""
    row = connection.execute(_TAKE, {"within": within}).first()
    return Notice(*row) if row else None


def mark_sent(connection: Connection, notice: Notice) -> bool:
    return connection.execute(_SENT[notice.over], {"id": notice.id}).rowcount > 0


def find(connection: Connection, most: int = 50) -> list[AlertRow]:
    """Return the open ones, then the newest."""
    return [AlertRow(*row) for row in connection.execute(_FIND, {"most": most})]
