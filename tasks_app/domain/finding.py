"""Findings: what a check saw, how bad it is, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    """It works, but it costs something or will stop working."""
    FAIL = "fail"
    """Some tasks do not run, or none."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer of a check, or one reason why a task waits."""

    level: Level
    subject: str
    fact: str
    advice: str = ""
    away: bool = False
    """The database or the broker did not answer: other checks could not begin."""


def ok(subject: str, fact: str, advice: str = "") -> Finding:
    return Finding(Level.OK, subject, fact, advice)


def warn(subject: str, fact: str, advice: str) -> Finding:
    return Finding(Level.WARN, subject, fact, advice)


def fail(subject: str, fact: str, advice: str) -> Finding:
    return Finding(Level.FAIL, subject, fact, advice)


def away(subject: str, fact: str, advice: str) -> Finding:
    return Finding(Level.FAIL, subject, fact, advice, away=True)
