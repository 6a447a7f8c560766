"""Rules of alerts that operators write: ``failed queue=mail > 10 in 5m; age queue=pay > 2m``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from tasks_app.domain.durations import parse_duration

_RULE = re.compile(
    r"(?P<kind>\w+)\s+(?P<of>name|queue)=(?P<target>\S+)"
    r"\s*>\s*(?P<limit>[\w.]+%?)(?:\s+in\s+(?P<span>\S+))?"
)
_NUMBER, _SHARE = re.compile(r"\d{1,9}"), re.compile(r"\d{1,2}(?:\.\d+)?%")
EXAMPLES = {
    "failed": "failed queue=mail > 10 in 5m",
    "ratio": "ratio name=mail.send > 20% in 15m",
    "age": "age queue=pay > 2m",
    "pending": "pending queue=bulk > 10000",
    "silence": "silence name=report.daily > 25h",
}
LONGEST = timedelta(days=30)
LARGEST = 1_000_000
"""Waiting tasks are counted so far."""


class RuleKind(StrEnum):
    """What is looked at."""

    FAILED = "failed"
    """Tasks that failed for good in a span."""
    RATIO = "ratio"
    """The share of runs in a span that did not succeed."""
    AGE = "age"
    """How long the oldest due task of a queue has waited."""
    PENDING = "pending"
    """Tasks that wait, due or not."""
    SILENCE = "silence"
    """How long no task has succeeded."""


@dataclass(frozen=True, slots=True)
class UserRule:
    """One rule; an alert when the figure is above the limit."""

    kind: RuleKind
    name: str | None
    queue: str | None
    limit: float
    """A number, or a share of 1."""
    span: timedelta
    """In which it is counted; of an age or a silence: the limit."""

    @property
    def target(self) -> str:
        return f"name={self.name}" if self.name else f"queue={self.queue}"

    @property
    def key(self) -> str:
        """The same as long as what it looks at is: another limit goes on with the same alert."""
        return f"rule:{self.kind} {self.target}"


def parse_rules(text: str) -> tuple[UserRule, ...]:
    """Read the setting.

    Raises:
        ValueError: it says which rule is wrong, and how one is written.
    """
    rules = tuple(_rule(part.strip()) for part in re.split(r"[;\n]", text) if part.strip())
    keys = [rule.key for rule in rules]
    for rule in rules:
        if keys.count(rule.key) > 1:
            raise ValueError(f"there are two rules of {rule.kind} {rule.target}; leave one out")
    return rules


def _rule(text: str) -> UserRule:
    found = _RULE.fullmatch(text)
    kind = text.split(maxsplit=1)[0]
    if kind not in EXAMPLES:
        raise ValueError(f"{text[:80]!r} begins with none of {', '.join(EXAMPLES)}")
    wrong = ValueError(f"{text[:80]!r} cannot be read; write it as: {EXAMPLES[kind]}")
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
    if (counted or by_time) and not timedelta(minutes=1) <= span <= LONGEST:
        raise ValueError(f"{text[:80]!r} names a time outside 1m .. 30d")
    if kind == "pending" and int(limit) >= LARGEST:
        raise ValueError(f"{text[:80]!r} is above {LARGEST - 1}, and no more are counted")
    of_name = found["of"] == "name"
    return UserRule(
        RuleKind(kind),
        found["target"] if of_name else None,
        None if of_name else found["target"],
        0.0 if by_time else float(limit.rstrip("%")) / (100 if kind == "ratio" else 1),
        span,
    )
