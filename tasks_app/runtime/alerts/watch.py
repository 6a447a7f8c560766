"""One look of a watcher: what is wrong is opened, what is over is closed, both are sent.

A message is sent after the commit that reserved it, and marked afterwards: at least once, and
twice only if the sender died, or got no answer, in between.
"""

from __future__ import annotations

import http.client
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import Connection, Engine

from tasks_app.domain.alerts.alert import Alert, message_of
from tasks_app.domain.config.webhook import shown
from tasks_app.pool.alerts import alerts

Send = Callable[[dict[str, Any]], bool]
TIMEOUT_S = 10.0
"""Well below ``SEND_WITHIN``: another watcher must not send while this one still waits."""
logger = logging.getLogger(__name__)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would send the message to a host that nobody configured."""

    def redirect_request(self, *_args: Any) -> None:
        return None


def record(connection: Connection, found: Iterable[Alert], unread: Iterable[str]) -> None:
    """Open and close; alerts of ``unread`` rules stay as they are, since nobody could look."""
    seen = {alert.key: alert for alert in found}
    rules = set(unread)
    for alert in sorted(seen.values(), key=lambda each: each.key):
        alerts.open_alert(connection, alert.key, alert.fact, alert.advice)
    for key in sorted(alerts.open_keys(connection) - set(seen)):
        if key.partition(":")[0] not in rules:
            alerts.close_alert(connection, key)


def deliver(engine: Engine, send: Send) -> int:
    """Send what is due; return how many were taken. What is refused is tried again later."""
    number = 0
    while True:
        with engine.begin() as connection:
            notice = alerts.take_notice(connection)
        if notice is None:
            return number
        message = message_of(
            notice.key, notice.fact, notice.advice, over=notice.over, alert_id=notice.id
        )
        if send(message):
            with engine.begin() as connection:
                alerts.mark_sent(connection, notice)
            number += 1


def to_log(message: dict[str, Any]) -> bool:
    """Log it."""
    logger.warning("alert %s: %s: %s", message["status"], message["key"], message["fact"])
    return True


def to_webhook(url: str) -> Send:
    """Return what logs a message and posts it as JSON."""

    def send(message: dict[str, Any]) -> bool:
        to_log(message)
        try:
            request = urllib.request.Request(  # noqa: S310  the settings take http and https only
                url, json.dumps(message).encode(), {"Content-Type": "application/json"}
            )
            opener = urllib.request.build_opener(_NoRedirect)
            with opener.open(request, timeout=TIMEOUT_S):
                return True
        except (OSError, ValueError, http.client.HTTPException) as error:
            status = f" {error.code}" if isinstance(error, urllib.error.HTTPError) else ""
            logger.warning(
                "alert was not taken by %s: %s%s", shown(url), type(error).__name__, status
            )
            return False

    return send
