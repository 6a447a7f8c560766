"""Names of other packages that are not public: each is checked once, at its first use.

Where a package no longer has them as we know them, we do without, more slowly, and say so.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Iterable
from functools import cached_property
from importlib import metadata
from typing import NamedTuple

from tasks_app.domain.finding import Finding, ok, warn

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

    def __init__(self, *needs: Need, without: str) -> None:
        """``without``: what is done where a need is not met; it follows a colon in ``fact``."""
        self.needs = needs
        self.without = without

    @cached_property
    def missing(self) -> str:
        """The first need that is not met, or an empty string."""
        return next((need.path for need in self.needs if not need.is_met()), "")

    @cached_property
    def works(self) -> bool:
        return not self.missing

    @property
    def fact(self) -> str:
        version = _version(_package(self.missing))
        return f"{version} has no {self.missing} as we know it: {self.without}"

    @property
    def advice(self) -> str:
        return f"Install {_supported(_package(self.missing))}."


def notices(shortcuts: Iterable[PrivateApi]) -> list[str]:
    return [f"{one.fact}. {one.advice}" for one in shortcuts if not one.works]


def findings(subject: str, shortcuts: Iterable[PrivateApi]) -> list[Finding]:
    """Return a warning for each that does not work; if all do, the versions."""
    shortcuts = list(shortcuts)
    packages = dict.fromkeys(_package(need.path) for one in shortcuts for need in one.needs)
    return [warn(subject, one.fact, one.advice) for one in shortcuts if not one.works] or [
        ok(subject, f"{', '.join(map(_version, packages))}: as we know them")
    ]


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
