"""By which server alerts are mailed, from whom and to whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

FORM = "smtps://user:password@host:465/?from=a@example.org&to=b@example.org,c@example.org"
PORTS = {"smtp": 587, "smtps": 465}


@dataclass(frozen=True, slots=True)
class MailServer:
    """Where to, read from a URL."""

    host: str
    port: int
    tls: bool
    """From the first byte on; else it begins with STARTTLS, where the server has it."""
    user: str
    password: str = field(repr=False)
    sender: str
    receivers: tuple[str, ...]

    @property
    def shown(self) -> str:
        """Without user and password."""
        return f"{'smtps' if self.tls else 'smtp'}://{self.host}:{self.port}"


def read_mail(url: str) -> MailServer:
    """Read the URL; user and password are percent-encoded.

    Raises:
        ValueError: something is missing. The message repeats nothing of it.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"use a URL such as {FORM}") from None
    query = parse_qs(parts.query)
    sender = "".join(query.get("from", ())).strip()
    receivers = tuple(each.strip() for each in ",".join(query.get("to", ())).split(",") if each)
    addresses = (sender, *receivers)
    if (
        parts.scheme not in PORTS
        or not parts.hostname
        or not receivers
        or not all(_is_address(address) for address in addresses)
    ):
        raise ValueError(f"use a URL such as {FORM}")
    if bool(parts.username) != bool(parts.password):
        raise ValueError("give both a user and a password, percent-encoded, or neither")
    return MailServer(
        host=parts.hostname,
        port=port or PORTS[parts.scheme],
        tls=parts.scheme == "smtps",
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        sender=sender,
        receivers=receivers,
    )


def _is_address(text: str) -> bool:
    name, _, host = text.rpartition("@")
    return bool(name and host) and text.isascii() and text.isprintable() and " " not in text
