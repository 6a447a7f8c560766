"""Findings: what a check-up saw, how bad it is, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad."""

    OK = "ok"
    WARN = "warn"
    """It works; it will not always, or it costs."""
    FAIL = "fail"
    """Tasks do not run, or not all."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a check-up, or one reason why a task waits."""

    level: Level
    subject: str
    fact: str
    advice: str = ""
    away: bool = False
    """Database or broker did not answer: other checks could not even begin."""


def ok(subject: str, fact: str, advice: str = "") -> Finding:
    """All is well."""
    return Finding(Level.OK, subject, fact, advice)


def warn(subject: str, fact: str, advice: str) -> Finding:
    """Somebody should look at it soon."""
    return Finding(Level.WARN, subject, fact, advice)


def fail(subject: str, fact: str, advice: str) -> Finding:
    """Somebody should look at it now."""
    return Finding(Level.FAIL, subject, fact, advice)


def away(subject: str, fact: str, advice: str) -> Finding:
    """Nobody answered."""
    return Finding(Level.FAIL, subject, fact, advice, away=True)
