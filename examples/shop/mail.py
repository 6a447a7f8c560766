"""How the shop hands a mail to its mail server, and what a refusal means."""

from __future__ import annotations

import os
import smtplib
from email.message import EmailMessage
from uuid import UUID

ADDRESS_VARIABLE = "SHOP_SMTP"
REFUSED_FOR_EVER = 500


class MailPutOffError(Exception):
    """The server said 4xx: not now. An ordinary exception, so the task is tried again."""


class MailRefusedError(Exception):
    """The server said 5xx: never. More attempts would not help."""


def send_mail(to: str, subject: str, *, about: str, key: UUID) -> None:
    """Send one mail; ``key`` lets its reader drop a second copy.

    Raises:
        MailPutOffError, MailRefusedError: the server answered so; neither names the address.
        OSError: the server is away (``smtplib.SMTPException`` is one, too).
    """
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@shop.example", to, subject
    message["X-About"], message["Idempotency-Key"] = about, str(key)
    message.set_content(f"{subject}.\n")
    host, _, port = os.environ[ADDRESS_VARIABLE].partition(":")
    try:
        with smtplib.SMTP(host, int(port), local_hostname="shop.example", timeout=5) as server:
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        [(code, _)] = error.recipients.values()
        raise _answer(code) from None
    except smtplib.SMTPResponseException as error:
        raise _answer(error.smtp_code) from None


def _answer(code: int) -> Exception:
    if code >= REFUSED_FOR_EVER:
        return MailRefusedError(f"SMTP {code}")
    return MailPutOffError(f"SMTP {code}")
