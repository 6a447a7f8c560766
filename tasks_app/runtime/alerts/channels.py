"""Channels: where alerts go. Each returns whether it took a message, and raises nothing."""

from __future__ import annotations

import http.client
import json
import smtplib
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import EmailMessage
from typing import Any

from tasks_app.domain.alerts import MailServer, read_mail, shown_webhook
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.urls import is_local
from tasks_app.domain.tasks.error_text import printable, quiet_logger

log = quiet_logger(__name__)
Send = Callable[[dict[str, Any]], bool]
# Of a connection, and of each of about ten steps of a mail: both stay below SEND_WITHIN, as
# another watcher must not send while this one still waits.
TIMEOUT_S, MAIL_TIMEOUT_S = 10.0, 4.0
WITHIN_S = 30.0  # of a whole message: a socket's time-out restarts with each byte


def is_wanted(settings: Settings) -> bool:
    """Whether a process with other duties must watch, too."""
    return bool(settings.alert_log or settings.alert_webhook or settings.alert_mail)


def channels(settings: Settings) -> dict[str, Send]:
    found: dict[str, Send] = {"log": to_log}
    if settings.alert_webhook is not None:
        found["webhook"] = InTime(to_webhook(settings.alert_webhook.get_secret_value()))
    if settings.alert_mail is not None:
        found["mail"] = InTime(to_mail(read_mail(settings.alert_mail.get_secret_value())))
    return found


class InTime:
    """A channel that refuses a message when its server takes too long over it."""

    def __init__(self, send: Send, within_s: float = WITHIN_S) -> None:
        self._send = send
        self._within_s = within_s
        self._busy: threading.Thread | None = None

    def __call__(self, message: dict[str, Any]) -> bool:
        if self._busy is not None and self._busy.is_alive():
            return False  # the last message still hangs
        took: list[bool] = []
        self._busy = threading.Thread(
            target=lambda: took.append(self._send(message)), name="tasks_app alert", daemon=True
        )
        self._busy.start()
        self._busy.join(self._within_s)
        if self._busy.is_alive():
            log.warning("alert was not taken within %g s: the server is too slow", self._within_s)
        return took == [True]


def to_log(message: dict[str, Any]) -> bool:
    key, fact = (printable(message[part], keep="") for part in ("key", "fact"))
    log.warning("alert %s: %s: %s", message["status"], key, fact)
    return True


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would send the message to a host that is not configured."""

    def redirect_request(self, *_args: Any) -> None:
        return None


def to_webhook(url: str) -> Send:
    def send(message: dict[str, Any]) -> bool:
        try:
            request = urllib.request.Request(  # noqa: S310  the settings take http and https only
                url, json.dumps(message).encode(), {"Content-Type": "application/json"}
            )
            opener = urllib.request.build_opener(_NoRedirect)
            with opener.open(request, timeout=TIMEOUT_S):
                return True
        except (OSError, ValueError, http.client.HTTPException) as error:
            status = f" {error.code}" if isinstance(error, urllib.error.HTTPError) else ""
            why = f"{type(error).__name__}{status}"
            log.warning("alert was not taken by %s: %s", shown_webhook(url), why)
            return False

    return send


def to_mail(server: MailServer) -> Send:
    """Return a function that mails a message; it logs no answers, which may repeat the login."""

    def send(message: dict[str, Any]) -> bool:
        mail = EmailMessage()
        try:
            key = printable(message["key"], keep="")
            mail["Subject"] = f"[tasks_app] {message['status']}: {key}"
            mail["From"], mail["To"] = server.sender, ", ".join(server.receivers)
            mail["Message-ID"] = f"<alert-{message['id']}-{message['status']}@tasks-app.invalid>"
            mail["Auto-Submitted"] = "auto-generated"
            mail.set_content(f"{message['fact']}\n\n{message['advice']}\n\n{json.dumps(message)}\n")
            with _connect(server) as smtp:
                refused = smtp.send_message(mail)
        except (OSError, ValueError) as error:  # SMTPException is an OSError
            code = getattr(error, "smtp_code", "")
            why = f"{type(error).__name__} {code}".rstrip()
            log.warning("alert was not taken by %s: %s", server.shown, why)
            return False
        if refused:
            log.warning("alert was not taken for %s addresses by %s", len(refused), server.shown)
        return True

    return send


def _connect(server: MailServer) -> smtplib.SMTP:
    """Connect and log in; OSError: the server refused, or has no TLS for the password."""
    context = ssl.create_default_context()
    smtp: smtplib.SMTP
    if server.tls:
        smtp = smtplib.SMTP_SSL(server.host, server.port, timeout=MAIL_TIMEOUT_S, context=context)
    else:
        smtp = smtplib.SMTP(server.host, server.port, timeout=MAIL_TIMEOUT_S)
    try:
        smtp.ehlo()
        if not server.tls and smtp.has_extn("starttls"):
            smtp.starttls(context=context)
            smtp.ehlo()
        elif server.user and not (server.tls or is_local(server.host)):
            raise smtplib.SMTPNotSupportedError("no TLS, so no password is sent")
        if server.user:
            smtp.login(server.user, server.password)
    except BaseException:
        smtp.close()
        raise
    return smtp
