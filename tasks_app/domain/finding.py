"""Findings of checks, and the check of other packages' names that are not public."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from importlib import metadata
from typing import NamedTuple


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"  # it works, but it costs something or will stop working
    FAIL = "fail"  # some tasks do not run, or none


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer of a check, or one reason why a task waits."""

    level: Level
    subject: str
    fact: str
    advice: str = ""
    away: bool = False  # the database or broker did not answer: other checks were impossible


def ok(subject: str, fact: str, advice: str = "") -> Finding:
    return Finding(Level.OK, subject, fact, advice)


def warn(subject: str, fact: str, advice: str) -> Finding:
    return Finding(Level.WARN, subject, fact, advice)


def fail(subject: str, fact: str, advice: str) -> Finding:
    return Finding(Level.FAIL, subject, fact, advice)


def away(subject: str, fact: str, advice: str) -> Finding:
    return Finding(Level.FAIL, subject, fact, advice, away=True)


_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[.*?\])?\s*([^;]*)")


class Used(NamedTuple):
    path: str  # package.module:Class.name
    parameters: tuple[str, ...] = ()  # the first ones of its signature
    names: tuple[str, ...] = ()  # attributes that its code sets, or methods that it calls

    def is_met(self) -> bool:
        try:
            found = pkgutil.resolve_name(self.path)
            given = [*inspect.signature(found).parameters] if self.parameters else []
        except (ImportError, AttributeError, TypeError, ValueError):
            return False
        code = getattr(inspect.unwrap(found), "__code__", None) if self.names else None
        used = () if code is None else code.co_names
        return given[: len(self.parameters)] == [*self.parameters] and {*self.names} <= {*used}


class PrivateApi:
    """A use of private names that works if all its needs are met."""

    def __init__(self, *needs: Used, without: str, since: tuple[int, int] | None = None) -> None:
        """``without``: what we do if a need is not met; it follows a colon in ``fact``.

        ``since``: the first release with the name, if we support older ones, too.
        """
        self.needs = needs
        self.without = without
        self.since = since

    @cached_property
    def missing(self) -> str:
        """Path of the first need that is not met, or an empty string."""
        return next((need.path for need in self.needs if not need.is_met()), "")

    @cached_property
    def works(self) -> bool:
        return not self.missing

    @cached_property
    def comes_later(self) -> bool:
        """Whether the installed release is supported, but too old for it."""
        if self.works or self.since is None:
            return False
        numbers = re.findall(r"\d+", _version(_package(self.missing)))
        return (*map(int, numbers[:2]),) < self.since

    @property
    def fact(self) -> str:
        version = _version(_package(self.missing))
        if self.comes_later:
            return f"{version}: {self.without}"
        return f"{version} has no {self.missing} as we know it: {self.without}"

    @property
    def advice(self) -> str:
        package = _package(self.missing)
        try:
            ours = metadata.requires("tasks_app") or ()
        except metadata.PackageNotFoundError:  # a checkout that is not installed
            ours = ()
        matches = filter(None, (_REQUIREMENT.match(line.lower()) for line in ours))
        requirement = package + {found[1]: found[2].strip() for found in matches}.get(package, "")
        if self.comes_later and self.since is not None:
            first = ">={}.{}".format(*self.since)
            requirement = re.sub(r">=[\d.]+", first, requirement)
        return f"Install {requirement}."


def startup_notices(shortcuts: Iterable[PrivateApi]) -> list[str]:
    """Return sentences for startup logs; a supported older release is no problem."""
    return [f"{one.fact}. {one.advice}" for one in shortcuts if not (one.works or one.comes_later)]


def version_findings(subject: str, shortcuts: Iterable[PrivateApi]) -> list[Finding]:
    """Return a warning for each use that does not work, or else the versions."""
    shortcuts = list(shortcuts)
    packages = dict.fromkeys(_package(need.path) for one in shortcuts for need in one.needs)
    missing = [one for one in shortcuts if not one.works]
    found = [(ok if one.comes_later else warn)(subject, one.fact, one.advice) for one in missing]
    if all(one.comes_later for one in missing):
        found.append(ok(subject, f"{', '.join(map(_version, packages))}: as we know them"))
    return found


def _package(path: str) -> str:
    return path.partition(":")[0].partition(".")[0]


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return package
