"""One look: what is wrong is opened, what is over is closed; then both are sent.

A message is sent after the commit that reserved it, and marked afterwards: at least once, and
twice only if the sender died in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.alerts.alert import Alert, cause_in, message_of
from tasks_app.domain.config.settings import Settings
from tasks_app.pool import alerts
from tasks_app.pool.connection.read_only import looking
from tasks_app.pool.errors import known
from tasks_app.runtime.alerts.channels import Send
from tasks_app.runtime.alerts.rules import RULES
from tasks_app.runtime.db.errors import is_unanswered, sqlstate

LONGEST = timedelta(seconds=10)
"""Of one statement of a rule."""
NEW_FOR = timedelta(hours=1)
"""An older first sighting is no news: the first watcher of a full pool would tell of each."""
MOST_NEW = 5
"""New errors of one look that get a message each."""


class Seen(NamedTuple):
    """What a look saw."""

    found: list[Alert]
    unread: list[str]
    """Rules that could not be read, by name."""


def look(engine: Engine, settings: Settings) -> Seen:
    """Ask each rule, in a transaction of its own that cannot write.

    Raises:
        DBAPIError: the database did not answer.
    """
    seen = Seen([], [])
    for name, rule in RULES.items():
        try:
            with looking(engine, LONGEST) as connection:
                seen.found.extend(rule(connection, settings))
        except DBAPIError as error:
            if is_unanswered(error) or not sqlstate(error):
                raise
            seen.unread.append(name)
    return seen


def record(connection: Connection, found: Iterable[Alert], unread: Iterable[str]) -> None:
    """Open and close; alerts of ``unread`` rules stay as they are, since nobody could look."""
    seen = {alert.key: alert for alert in found}
    rules = set(unread)
    for key in sorted(seen):
        alerts.open_alert(connection, seen[key])
    for key in sorted(alerts.open_keys(connection) - set(seen)):
        if key.partition(":")[0] not in rules:
            alerts.close_alert(connection, key)


def tell_news(connection: Connection) -> None:
    """Enter causes of errors that are new, and an event for each, in one transaction."""
    entered = known.enter(connection)
    news = known.seen_within(connection, entered, NEW_FOR) if entered else []
    told = [
        Alert(
            f"new-error:{each.fingerprint}",
            f"a new error: {cause_in(each.kind, each.names, each.queues)}",
            f"tasks-app errors show {each.fingerprint}",
        )
        for each in news[:MOST_NEW]
    ]
    if len(news) > MOST_NEW:
        fact = f"{len(news) - MOST_NEW} more new errors were seen at once"
        told.append(Alert("new-error:more", fact, "tasks-app errors"))
    for alert in told:
        alerts.tell_event(connection, alert)


def deliver(engine: Engine, channels: Mapping[str, Send]) -> int:
    """Send what is due; return how many messages are through. A refused one is due again later.

    A channel that refused one gets no other until the next call: a server that hangs would keep
    this process from looking.
    """
    number, silent = 0, set[str]()
    while True:
        with engine.begin() as connection:
            notice = alerts.take_notice(connection)
        if notice is None:
            return number
        message = message_of(
            notice.key, notice.fact, notice.advice, over=notice.over, alert_id=notice.id
        )
        wanted = notice.to_tell(channels)
        took = [name for name in wanted if name not in silent and channels[name](message)]
        silent.update(set(wanted) - set(took))
        with engine.begin() as connection:
            alerts.mark_sent(connection, notice, took, whole=took == wanted)
        number += took == wanted
