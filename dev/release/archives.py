"""The sdist and the wheel: how they are built, and what must not be in them."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.metadata import Metadata

NEEDED = (
    "tasks_app/__init__.py",
    "tasks_app/__init__.pyi",
    "tasks_app/py.typed",
    "tasks_app/_migrations/env.py",
    "tasks_app/_examples/hello.py",
    "tasks_app/dashboard/static/htmx.LICENSE.txt",
    "LICENSE",
)
# In the sdist these lie where the checkout has them.
MOVED = {"tasks_app/_migrations": "migrations", "tasks_app/_examples": "examples"}
WHEEL_FOLDERS = re.compile(r"tasks_app|tasks_app-[^/]+\.dist-info")
SDIST_FOLDERS = re.compile(
    r"tasks_app|migrations|examples|[A-Z_]+(\.md)?|pyproject\.toml|PKG-INFO|\.gitignore"
)
LEFT_OVER = re.compile(
    r"(^|/)(__pycache__|\.env|\.git|\.venv|\.DS_Store)(/|$)|\.(pyc|orig|rej|log|pem|key)$"
)
SECRET = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_\w{36}|\bpypi-[\w-]{60}"
)


def build(checkout: Path, folder: Path) -> tuple[Path, Path]:
    """Return the wheel and the sdist in ``folder``, of whose older ones none is left."""
    for old in folder.glob("tasks_app-*"):
        old.unlink()
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder],
        cwd=checkout,
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return wheel, sdist


def contents(archive: Path) -> dict[str, bytes]:
    """Return the files of a wheel, or of an sdist without its outermost folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(archive) as sdist:
        files = {member.name: sdist.extractfile(member) for member in sdist if member.isfile()}
        return {name.partition("/")[2]: file.read() for name, file in files.items() if file}


def own_words(checkout: Path) -> set[bytes]:
    """Return what would tell where it was built: folders, and the places of package indexes."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    )
    indexes = re.findall(r"https?://(?:[^/@\s]*@)?([^/:'\s]+)|file://(/[^'\s]+)", asked.stdout)
    places = {str(checkout), str(Path.home()), *(host or folder for host, folder in indexes)}
    return {word.rstrip("/").encode() for word in places - {"/", "localhost", "127.0.0.1"}}


def findings(archive: Path, own: set[bytes]) -> Iterator[str]:
    files = contents(archive)
    wheel = archive.suffix == ".whl"
    allowed = WHEEL_FOLDERS if wheel else SDIST_FOLDERS
    for needed in NEEDED:
        if not any(name.endswith(_as_in(needed, wheel=wheel)) for name in files):
            yield f"{archive.name} lacks {needed}"
    for name, words in sorted(files.items()):
        if not allowed.fullmatch(name.partition("/")[0]):
            yield f"{archive.name} has {name}, which is not part of the package"
        if LEFT_OVER.search(name):
            yield f"{archive.name} has {name}, which is left over from work"
        if SECRET.search(words):
            yield f"{archive.name}: {name} holds a key or a token"
        for word in sorted(own):
            if re.search(rb"(?<![\w.-])" + re.escape(word) + rb"(?![\w-])", words):
                yield f"{archive.name}: {name} names this machine or its index: {word.decode()}"


def _as_in(needed: str, *, wheel: bool) -> str:
    if wheel:
        return needed
    for there, here in MOVED.items():
        if needed.startswith(there):
            return here + needed.removeprefix(there)
    return needed


def metadata_findings(built: Sequence[Path]) -> Iterator[str]:
    """Yield what an index would refuse."""
    for archive in built:
        files = contents(archive)
        (name,) = (
            name for name in files if re.fullmatch(r"PKG-INFO|[^/]+\.dist-info/METADATA", name)
        )
        try:
            metadata = Metadata.from_email(files[name], validate=True)
        except ExceptionGroup as wrong:
            yield from (f"{archive.name}: {name}: {each}" for each in wrong.exceptions)
        else:
            if metadata.description_content_type != "text/markdown" or not metadata.description:
                yield f"{archive.name}: {name} does not bring the README"
