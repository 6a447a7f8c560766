"""Which licences those may have that come with us."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from dev.release.archives import contents

# What lets people use, change and sell what is made with it. LGPL (psycopg) and MPL (certifi) ask
# that only of themselves, and we change neither. Packages write the same licence in several ways.
ALLOWED = frozenset(
    {
        "0BSD",
        "Apache",
        "Apache 2.0",
        "Apache Software License",
        "Apache-2.0",
        "BSD",
        "BSD License",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "LGPL-3.0-only",
        "MIT",
        "MIT-0",
        "MIT License",
        "MPL-2.0",
        "Mozilla Public License 2.0 (MPL 2.0)",
        "PSF-2.0",
        "Python Software Foundation License",
    }
)
ALLOWS = "dev/release/licences.py"
STATIC = "tasks_app/dashboard/static/"
_ROW = re.compile(
    r"^\| `([^`]+)` \| [^|]*?`([^`]+)`[^|]*\| ([^| ]+) \| ([^|,]+), `([^`]+)` \| `([0-9a-f]+)` \|$",
    re.MULTILINE,
)


class Vendored(NamedTuple):
    """A file of others that lies in the wheel, as VENDORED.md says it."""

    file: str
    package: str
    version: str
    licence: str
    licence_file: str
    sha256: str


def findings(licences: Mapping[str, str]) -> Iterator[str]:
    """Yield each package whose licence is unknown, or not one of ``ALLOWED``.

    Args:
        licences: By package; several joined by AND, OR or ``;`` must all be allowed.
    """
    for package, licence in sorted(licences.items()):
        parts = re.split(r" AND | OR |; ", licence)
        if not ALLOWED.issuperset(parts):
            yield f"the licence of {package} is {licence!r}: read it, then allow it in {ALLOWS}"


def vendored(files: Mapping[str, bytes]) -> list[Vendored]:
    return [Vendored(*row) for row in _ROW.findall(files[f"{STATIC}VENDORED.md"].decode())]


def vendored_findings(wheel: Path) -> Iterator[str]:
    """Yield what others wrote and VENDORED.md does not name, or not as it is."""
    files = contents(wheel)
    named = vendored(files)
    for each in named:
        words = files.get(STATIC + each.file)
        if words is None or hashlib.sha256(words).hexdigest() != each.sha256:
            yield f"{each.file} is not the file of which VENDORED.md has the sha256"
        if STATIC + each.licence_file not in files:
            yield f"{each.file} comes without its licence, {each.licence_file}"
        if each.licence not in ALLOWED:
            yield f"the licence of {each.file} is {each.licence!r}: not allowed in {ALLOWS}"
    known = {each.file for each in named}
    for name in sorted(files):
        if (
            name.endswith((".min.js", ".min.css", ".woff", ".woff2"))
            and Path(name).name not in known
        ):
            yield f"VENDORED.md does not name {name}"
