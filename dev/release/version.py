"""``make release VERSION=0.2.0``: the version of the package, and of what is unreleased."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

from packaging.version import InvalidVersion, Version

_OF_PACKAGE = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
_UNRELEASED = re.compile(r"^## Unreleased\n(.*?)(?=^## \[|\Z)", re.MULTILINE | re.DOTALL)


class RefusedError(ValueError):
    """What is wrong, and what to do: for people."""


def give(checkout: Path, wanted: str, today: datetime.date | None = None) -> str:
    """Write the version into pyproject.toml and CHANGELOG.md; return what to do next.

    Without ``today`` the release has the date of this machine.

    Raises:
        RefusedError: It is no version, not newer, or nothing is unreleased. Nothing was written.
    """
    package, changelog = checkout / "pyproject.toml", checkout / "CHANGELOG.md"
    settings, changes = package.read_text(), changelog.read_text()
    said = _OF_PACKAGE.search(settings)
    unreleased = _UNRELEASED.search(changes)
    if said is None or unreleased is None:
        raise RefusedError(
            "pyproject.toml has no version, or CHANGELOG.md no heading Unreleased. Mend them."
        )
    try:
        newer = Version(wanted) > Version(said[1])
    except InvalidVersion:
        raise RefusedError(f"{wanted!r} is no version. Write one such as 0.2.0.") from None
    if not newer:
        raise RefusedError(f"{wanted} is not newer than {said[1]}. Give a newer one.")
    if not unreleased[1].strip():
        raise RefusedError("CHANGELOG.md has nothing under Unreleased. Say there what changes.")
    on = today or datetime.date.today()  # noqa: DTZ011 - a release has the date of who makes it
    package.write_text(_OF_PACKAGE.sub(f'version = "{Version(wanted)}"', settings, count=1))
    heading = f"## Unreleased\n\n## [{Version(wanted)}] - {on}\n"
    changelog.write_text(changes.replace("## Unreleased\n", heading, 1))
    return (
        f"pyproject.toml and CHANGELOG.md say {Version(wanted)}. Next: make release-check, commit, "
        f"git tag v{Version(wanted)}, then name the commit in docs/releases.md."
    )
