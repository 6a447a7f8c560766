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


OURSELVES = "tasks_app"
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[.*?\])?\s*([^;]*)")


class Need(NamedTuple):
    """A name in a package, and what must be true of it."""

    path: str
    """As ``package.module:Class.name``."""
    parameters: tuple[str, ...] = ()
    """The first parameters of its signature."""
    names: tuple[str, ...] = ()
    """Attributes that its code sets, or methods that it calls."""

    def is_met(self) -> bool:
        """Whether it is there, takes these parameters and uses these names."""
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

    def __init__(self, *needs: Need, without: str, since: tuple[int, int] | None = None) -> None:
        """Describe it.

        Args:
            needs: the first is of the package that ``since`` is about.
            without: what is done where a need is not met; it follows a colon in ``fact``.
            since: the first release that has it, where we take older ones, too.
        """
        self.needs = needs
        self.without = without
        self.since = since

    @cached_property
    def missing(self) -> str:
        """The first need that is not met, or an empty string."""
        return next((need.path for need in self.needs if not need.is_met()), "")

    @cached_property
    def works(self) -> bool:
        return not self.missing

    @cached_property
    def comes_later(self) -> bool:
        """Whether the installed release, which we take all the same, is too old for it."""
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
        requirement = _supported(_package(self.missing))
        if self.comes_later and self.since is not None:
            first = ">={}.{}".format(*self.since)
            requirement = re.sub(r">=[\d.]+", first, requirement)
        return f"Install {requirement}."


def notices(shortcuts: Iterable[PrivateApi]) -> list[str]:
    """Return what is not as we know it; what comes later is not said at each start."""
    return [f"{one.fact}. {one.advice}" for one in shortcuts if not (one.works or one.comes_later)]


def findings(subject: str, shortcuts: Iterable[PrivateApi]) -> list[Finding]:
    """Return a warning for each that is not as we know it; if all are, the versions.

    What a release that we take is too old for is no warning.
    """
    shortcuts = list(shortcuts)
    packages = dict.fromkeys(_package(need.path) for one in shortcuts for need in one.needs)
    missing = [one for one in shortcuts if not one.works]
    said = [(ok if one.comes_later else warn)(subject, one.fact, one.advice) for one in missing]
    if all(one.comes_later for one in missing):
        said.append(ok(subject, f"{', '.join(map(_version, packages))}: as we know them"))
    return said


def _package(path: str) -> str:
    return path.partition(":")[0].partition(".")[0]


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return package


def _supported(package: str) -> str:
    """Return our own requirement of a package, such as ``psycopg>=3.3,<3.4``."""
    try:
        requirements = [line.lower() for line in metadata.requires(OURSELVES) or ()]
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        requirements = []
    matches = map(_REQUIREMENT.match, requirements)
    known: dict[str, str] = {found[1]: found[2].strip() for found in matches if found}
    return package + known.get(package, "")
