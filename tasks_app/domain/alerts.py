"""Alerts: what an alert is, the rules that operators write, and where alerts are sent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from tasks_app.domain.durations import parse_duration

MOST_NAMES_SHOWN = 3  # names, and queues, of an error in a message


@dataclass(frozen=True, slots=True)
class Alert:
    """A problem; ``key`` stays the same as long as the problem does."""

    key: str
    fact: str
    advice: str
    settle: timedelta = timedelta(0)  # it is sent only if it lasts longer, so not at a deployment


def message_of(key: str, fact: str, advice: str, *, over: bool, alert_id: int) -> dict[str, Any]:
    status = "resolved" if over else "firing"
    return {"id": alert_id, "status": status, "key": key, "fact": fact, "advice": advice}


def describe_cause(kind: str, names: Sequence[str], queues: Sequence[str]) -> str:
    """Return an error's class with its tasks and queues: a fingerprint says little on a phone."""
    if not names:
        return kind
    shown_names, shown_queues = (
        ", ".join(each[:MOST_NAMES_SHOWN])
        + f" and {len(each) - MOST_NAMES_SHOWN} more" * (len(each) > MOST_NAMES_SHOWN)
        for each in (names, queues)
    )
    return f"{kind} in {shown_names}, {'queue' if len(queues) == 1 else 'queues'} {shown_queues}"


_RULE = re.compile(
    r"(?P<kind>\w+)\s+(?P<of>name|queue)=(?P<target>\S+)"
    r"\s*>\s*(?P<limit>[\w.]+%?)(?:\s+in\s+(?P<span>\S+))?"
)
_NUMBER, _SHARE = re.compile(r"\d{1,9}"), re.compile(r"\d{1,2}(?:\.\d+)?%")
RULE_EXAMPLES = {
    "failed": "failed queue=mail > 10 in 5m",
    "ratio": "ratio name=mail.send > 20% in 15m",
    "age": "age queue=pay > 2m",
    "pending": "pending queue=bulk > 10000",
    "silence": "silence name=report.daily > 25h",
}
LONGEST_PERIOD = timedelta(days=30)
LARGEST_NUMBER = 1_000_000  # waiting tasks are counted up to this one


class RuleKind(StrEnum):
    FAILED = "failed"  # tasks that failed for good in a span
    RATIO = "ratio"  # the share of runs in a span that did not succeed
    AGE = "age"  # how long the oldest due task of a queue has waited
    PENDING = "pending"  # tasks that wait, due or not
    SILENCE = "silence"  # how long no task has succeeded


@dataclass(frozen=True, slots=True)
class UserRule:
    """An alert if the figure is above the limit."""

    kind: RuleKind
    name: str | None
    queue: str | None
    limit: float  # a number, or a share of 1
    span: timedelta  # in which it is counted; for an age or a silence: the limit

    @property
    def target(self) -> str:
        return f"name={self.name}" if self.name else f"queue={self.queue}"

    @property
    def key(self) -> str:
        """Independent of the limit: after a change of the limit the same alert goes on."""
        return f"rule:{self.kind} {self.target}"


def parse_rules(text: str) -> tuple[UserRule, ...]:
    """Read the setting; a ValueError says which rule is wrong, and how one is written."""
    rules = tuple(_parse_rule(part.strip()) for part in re.split(r"[;\n]", text) if part.strip())
    keys = [rule.key for rule in rules]
    for rule in rules:
        if keys.count(rule.key) > 1:
            raise ValueError(f"there are two rules of {rule.kind} {rule.target}; leave one out")
    return rules


def _parse_rule(text: str) -> UserRule:
    found = _RULE.fullmatch(text)
    kind = text.split(maxsplit=1)[0]
    if kind not in RULE_EXAMPLES:
        raise ValueError(f"{text[:80]!r} must begin with one of {', '.join(RULE_EXAMPLES)}")
    wrong = ValueError(f"{text[:80]!r} cannot be read; write it as: {RULE_EXAMPLES[kind]}")
    if found is None:
        raise wrong
    counted, by_time = kind in ("failed", "ratio"), kind in ("age", "silence")
    if counted != bool(found["span"]) or (kind == "age" and found["of"] == "name"):
        raise wrong
    limit, span = found["limit"], timedelta(0)
    try:
        if counted or by_time:
            span = parse_duration(found["span"] if counted else limit)
    except ValueError:
        raise wrong from None
    wanted = _SHARE if kind == "ratio" else _NUMBER
    if not by_time and not wanted.fullmatch(limit):
        raise wrong
    if (counted or by_time) and not timedelta(minutes=1) <= span <= LONGEST_PERIOD:
        raise ValueError(f"{text[:80]!r} names a time outside 1m .. 30d")
    if kind == "pending" and int(limit) >= LARGEST_NUMBER:
        raise ValueError(f"{text[:80]!r} is above {LARGEST_NUMBER - 1}, the most that is counted")
    of_name = found["of"] == "name"
    return UserRule(
        RuleKind(kind),
        found["target"] if of_name else None,
        None if of_name else found["target"],
        0.0 if by_time else float(limit.rstrip("%")) / (100 if kind == "ratio" else 1),
        span,
    )


MAIL_FORM = "smtps://user:password@host:465/?from=a@example.org&to=b@example.org,c@example.org"
MAIL_PORTS = {"smtp": 587, "smtps": 465}


@dataclass(frozen=True, slots=True)
class MailServer:
    """The server and addresses from a URL."""

    host: str
    port: int
    tls: bool  # from the first byte on; else STARTTLS, if the server offers it
    user: str
    password: str = field(repr=False)
    sender: str
    receivers: tuple[str, ...]

    @property
    def shown(self) -> str:
        return f"{'smtps' if self.tls else 'smtp'}://{self.host}:{self.port}"


def read_mail(url: str) -> MailServer:
    """Read the URL, whose user and password are percent-encoded; raises ValueError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"use a URL such as {MAIL_FORM}") from None
    query = parse_qs(parts.query)
    sender = "".join(query.get("from", ())).strip()
    receivers = tuple(each.strip() for each in ",".join(query.get("to", ())).split(",") if each)
    is_valid = parts.scheme in MAIL_PORTS and receivers and all(map(_is_address, receivers))
    if not is_valid or not _is_address(sender) or not parts.hostname:
        raise ValueError(f"use a URL such as {MAIL_FORM}")
    if bool(parts.username) != bool(parts.password):
        raise ValueError("give both a user and a password, percent-encoded, or neither")
    return MailServer(
        host=parts.hostname,
        port=port or MAIL_PORTS[parts.scheme],
        tls=parts.scheme == "smtps",
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        sender=sender,
        receivers=receivers,
    )


def _is_address(text: str) -> bool:
    name, _, host = text.rpartition("@")
    return bool(name and host) and text.isascii() and text.isprintable() and " " not in text


def read_webhook(url: str) -> str:
    """Return a http or https URL; a ValueError repeats nothing of it."""
    parts: SplitResult | None = None
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.port == 0 or " " in url or not (url.isascii() and url.isprintable()):
            parts = None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("use a URL such as https://host/path")
    if "@" in parts.netloc:
        raise ValueError("leave out user and password; a token may be in the path")
    return url


def shown_webhook(url: str) -> str:
    """Return scheme and host alone: path and query are often the secret of a webhook."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"
