"""Alerts: opened, sent and closed by compare-and-set, so that one of several watchers wins."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, text

from tasks_app.domain.alerts import Alert
from tasks_app.pool.tables import ALERT, ALERT_LOOK, NOW, Clock

SEND_WITHIN = timedelta(minutes=1)  # an unmarked message is sent again after it: its sender died
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=10), timedelta(minutes=10)
"""After a refusal; each further one doubles the wait."""
_OPEN = text(f"""
    INSERT INTO {ALERT} (key, fact, advice, sending_until)
    VALUES (:key, :fact, :advice, statement_timestamp() + CAST(:settle AS interval))
    ON CONFLICT (key) WHERE closed_at IS NULL DO NOTHING""")
_INSERT_EVENT = text(f"""
    INSERT INTO {ALERT} (key, fact, advice, event, closed_at)
    VALUES (:key, :fact, :advice, true, statement_timestamp())""")
# It may have been sent or not: its sender is at work, or dead.
_UNANSWERED = "(tries > 0 AND opened_to = '{}' AND opened_sent_at IS NULL)"
_CLOSE = text(f"""
    UPDATE {ALERT} SET closed_at = statement_timestamp(),
        sending_until = CASE WHEN {_UNANSWERED} THEN sending_until ELSE '-infinity' END,
        tries = CASE WHEN {_UNANSWERED} THEN tries ELSE 0 END
    WHERE key = :key AND closed_at IS NULL""")
_OPEN_KEYS = text(f"SELECT key FROM {ALERT} WHERE closed_at IS NULL")
_OVER = "(closed_at IS NOT NULL AND NOT event)"
_DUE = f"""CASE WHEN {_OVER}
    THEN closed_sent_at IS NULL AND (opened_sent_at IS NOT NULL OR opened_to <> '{{}}' OR tries > 0)
    ELSE opened_sent_at IS NULL END"""
_TAKE = text(f"""
    WITH due AS MATERIALIZED (
        SELECT id FROM {ALERT} WHERE sending_until <= statement_timestamp() AND {_DUE}
        ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
    UPDATE {ALERT} a SET sending_until = statement_timestamp() + CAST(:within AS interval),
        tries = least(a.tries + 1, 1000)
    FROM due WHERE a.id = due.id
    RETURNING a.id, a.key, a.fact, a.advice, {_OVER} AS over, a.opened_to, a.closed_to""")
_MARK = {
    over: text(f"""
        UPDATE {ALERT} SET {word}_to = {word}_to || CAST(:took AS text[]),
            {word}_sent_at = CASE WHEN :whole THEN statement_timestamp() END,
            tries = CASE WHEN :whole THEN 0 ELSE tries END,
            sending_until = CASE WHEN :whole THEN '-infinity' ELSE statement_timestamp()
                + least(CAST(:first AS interval) * (2 ^ least(greatest(tries, 1) - 1, 10)),
                    CAST(:longest AS interval)) END
        WHERE id = :id AND {word}_sent_at IS NULL""")
    for over, word in ((False, "opened"), (True, "closed"))
}
_PRUNE = text(f"""
    DELETE FROM {ALERT} WHERE id IN (
        SELECT id FROM {ALERT} WHERE closed_at < {NOW} - CAST(:older AS interval)
        ORDER BY id LIMIT :most FOR UPDATE SKIP LOCKED)""")
_FIND = text(f"""
    SELECT id, key, fact, advice, event, opened_at, closed_at, opened_sent_at, closed_sent_at
    FROM {ALERT} ORDER BY closed_at IS NULL DESC, id DESC LIMIT :most""")


@dataclass(frozen=True, slots=True)
class Notice:
    """A message that only the holder of this sends."""

    id: int
    key: str
    fact: str
    advice: str
    over: bool
    opened_to: list[str]
    closed_to: list[str]

    def to_tell(self, channels: Collection[str]) -> list[str]:
        """Return the channels still to be told; of an end, only those that got the beginning."""
        if not self.over:
            return [name for name in channels if name not in self.opened_to]
        told = self.opened_to or channels  # none: its sender died, so any may have got it
        return [name for name in channels if name in told and name not in self.closed_to]


@dataclass(frozen=True, slots=True)
class AlertRow:
    id: int
    key: str
    fact: str
    advice: str
    event: bool
    opened_at: datetime
    closed_at: datetime | None
    opened_sent_at: datetime | None
    closed_sent_at: datetime | None


def open_alert(connection: Connection, alert: Alert) -> bool:
    """False: it is open already."""
    values = {"key": alert.key, "fact": alert.fact, "advice": alert.advice, "settle": alert.settle}
    return connection.execute(_OPEN, values).rowcount > 0


def close_alert(connection: Connection, key: str) -> bool:
    """False: it is not open any more."""
    return connection.execute(_CLOSE, {"key": key}).rowcount > 0


def open_keys(connection: Connection) -> set[str]:
    return set(connection.execute(_OPEN_KEYS).scalars())


def insert_event(connection: Connection, alert: Alert) -> None:
    """Insert an alert of something that happened once, and has no end."""
    values = {"key": alert.key, "fact": alert.fact, "advice": alert.advice}
    connection.execute(_INSERT_EVENT, values)


def take_notice(connection: Connection, within: timedelta = SEND_WITHIN) -> Notice | None:
    """Return a message to send after the commit; None: there is none."""
    row = connection.execute(_TAKE, {"within": within}).first()
    return Notice(*row) if row else None


def mark_sent(connection: Connection, notice: Notice, took: list[str], *, whole: bool) -> bool:
    """Record the channels that took it; if not ``whole``, it is due again after a wait."""
    values = {"id": notice.id, "took": took, "whole": whole}
    values |= {"first": FIRST_WAIT, "longest": LONGEST_WAIT}
    return connection.execute(_MARK[notice.over], values).rowcount > 0


def prune(connection: Connection, older: timedelta, most: int, *, now: Clock = None) -> int:
    """Delete alerts that ended this long ago, sent or not; return how many."""
    return connection.execute(_PRUNE, {"older": older, "most": most, "now": now}).rowcount


def find_alerts(connection: Connection, most: int = 50) -> list[AlertRow]:
    """Return the open ones, then the newest."""
    return [AlertRow(*row) for row in connection.execute(_FIND, {"most": most})]


_CHECK_IS_DUE = f"""(l.held_until IS NULL OR l.held_until <= {NOW})
    AND (l.done_at IS NULL OR l.done_at <= {NOW} - CAST(:every AS interval))"""
# While a check runs nothing is inserted, so others do not wait for the row.
_BEGIN_CHECK = text(f"""
    INSERT INTO {ALERT_LOOK} AS l (one, holder, token, held_until)
    SELECT true, :holder, :token, {NOW} + CAST(:ttl AS interval)
    WHERE NOT EXISTS (SELECT FROM {ALERT_LOOK} l WHERE NOT ({_CHECK_IS_DUE}))
    ON CONFLICT (one) DO UPDATE SET holder = EXCLUDED.holder, token = EXCLUDED.token,
        held_until = EXCLUDED.held_until
    WHERE {_CHECK_IS_DUE}""")
_FINISH_CHECK = text(f"""
    UPDATE {ALERT_LOOK} SET done_at = {NOW}, held_until = NULL WHERE token = :token""")


def begin_check(
    connection: Connection,
    *,
    holder: str,
    token: UUID,
    every: timedelta,
    ttl: timedelta,
    now: Clock = None,
) -> bool:
    """False: another process checks, or did so within ``every``."""
    values = {"holder": holder, "token": token, "every": every, "ttl": ttl, "now": now}
    return connection.execute(_BEGIN_CHECK, values).rowcount > 0


def finish_check(connection: Connection, token: UUID, *, now: Clock = None) -> bool:
    """Finish this check; False: another has begun since, so discard the results."""
    # Until the transaction ends, none can begin.
    return connection.execute(_FINISH_CHECK, {"token": token, "now": now}).rowcount > 0
