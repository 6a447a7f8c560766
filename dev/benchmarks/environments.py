"""Each system in an environment of its own, with pinned versions, made once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, Protocol

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / ".tasks_app" / "bench"
PEERS = PROJECT / "dev" / "benchmarks" / "peers"
NEWEST = 20
"""No Python 3 is newer."""
VERSIONS = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
"""Where pyenv keeps those that are not on the path."""


class MissingError(Exception):
    """A system cannot be run here; the message says why."""


class Environment(Protocol):
    """Where a system's code runs."""

    def ensure(self) -> None:
        """Make it if it is not there.

        Raises:
            MissingError: what it needs is not on this machine.
        """

    def play(self, *arguments: str) -> list[str]:
        """Return the command that runs the system's ``play`` with these arguments."""

    def program(self, name: str, *arguments: str) -> list[str]:
        """Return the command of a program that the system brought along."""

    def versions(self) -> dict[str, str]:
        """Return the versions of what matters for speed."""


@dataclass(frozen=True, slots=True)
class Ours:
    """The environment that this runs in."""

    def ensure(self) -> None:
        """It is there."""

    def play(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "dev.benchmarks.peers.ours.play", *arguments]

    def program(self, name: str, *arguments: str) -> list[str]:
        return [str(Path(sys.executable).parent / name), *arguments]

    def versions(self) -> dict[str, str]:
        return _python_versions(sys.executable, ("celery", "SQLAlchemy", "psycopg", "kombu"))


@dataclass(frozen=True, slots=True)
class Virtual:
    """A venv from the ``requirements.txt`` of ``pins``, or of ``peers/<name>``."""

    name: str
    packages: tuple[str, ...]
    pins: Path | None = None
    least: tuple[int, int] = (3, 11)
    """The oldest Python that it runs on."""

    @property
    def folder(self) -> Path:
        return FOLDER / "environments" / self.name

    def ensure(self) -> None:
        """Install what is pinned, again when the pins have changed.

        Raises:
            MissingError: there is no Python that is new enough.
        """
        pins = (self.pins or PEERS / self.name) / "requirements.txt"
        if is_made(self.folder, pins):
            return
        print(f"setting up {self.name} (once) ...", flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        run([newest_python(self.name, self.least), "-m", "venv", str(self.folder)], self.name)
        pip = [str(self.folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        run([*pip, "--require-hashes", "-r", str(pins)], self.name)
        note_made(self.folder, pins)

    def play(self, *arguments: str) -> list[str]:
        python = str(self.folder / "bin" / "python")
        return [python, "-m", f"dev.benchmarks.peers.{self.name}.play", *arguments]

    def program(self, name: str, *arguments: str) -> list[str]:
        return [str(self.folder / "bin" / name), *arguments]

    def versions(self) -> dict[str, str]:
        return _python_versions(str(self.folder / "bin" / "python"), self.packages)


@dataclass(frozen=True, slots=True)
class Npm:
    """A folder of node modules from ``peers/<name>/package-lock.json``.

    Node itself is one of them, as far as there is one for this kind of machine.
    """

    name: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return FOLDER / "environments" / self.name

    @property
    def _node(self) -> Path:
        return self.folder / "node"

    def ensure(self) -> None:
        """Install what is pinned.

        Raises:
            MissingError: there is no Node, which npm needs.
        """
        if shutil.which("node") is None or shutil.which("npm") is None:
            raise MissingError(f"NOT MEASURED: {self.name} needs node and npm, which are not here.")
        pins = PEERS / self.name / "package-lock.json"
        if not is_made(self.folder, pins):
            print(f"setting up {self.name} (once) ...", flush=True)
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            for file in ("package.json", "package-lock.json"):
                shutil.copy(PEERS / self.name / file, self.folder)
            run(["npm", "ci", "--silent", "--prefix", str(self.folder)], self.name)
            brought = Path(self.program("node")[0])
            self._node.symlink_to(brought if brought.exists() else str(shutil.which("node")))
            note_made(self.folder, pins)
        for script in (PEERS / self.name / "play.js", PEERS / "marks.js"):
            shutil.copy(script, self.folder)  # beside its modules

    def play(self, *arguments: str) -> list[str]:
        return [str(self._node), str(self.folder / "play.js"), *arguments]

    def program(self, name: str, *arguments: str) -> list[str]:
        return [str(self.folder / "node_modules" / ".bin" / name), *arguments]

    def versions(self) -> dict[str, str]:
        found = {"node": output([str(self._node), "--version"]).strip()}
        for package in self.packages:
            about = self.folder / "node_modules" / package / "package.json"
            found[package] = json.loads(about.read_text())["version"]
        return found


def newest_python(name: str, least: tuple[int, int]) -> str:
    """Return the Python that this runs on, or else the newest that is new enough.

    Raises:
        MissingError: there is none.
    """
    if sys.version_info >= least:
        return sys.executable
    folders = [*os.get_exec_path(), *map(str, VERSIONS.glob("*/bin"))]
    for minor in range(NEWEST, least[1] - 1, -1):
        for folder in folders:
            python = Path(folder) / f"python3.{minor}"
            # a version manager's own script may be there without the version being chosen
            if python.exists() and not subprocess.call([python, "-c", ""], stderr=DEVNULL):
                return str(python)
    raise MissingError(
        f"NOT MEASURED: {name} needs Python {least[0]}.{least[1]}, which is not here."
    )


def ask(command: list[str], variables: Mapping[str, str], patience_s: float = 120) -> Any:
    """Run a play to its end and return its last line, decoded.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(
        command,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=patience_s,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[-2]} ended with {done.returncode}: {done.stderr[-800:]}")
    lines = done.stdout.strip().splitlines()
    return json.loads(lines[-1]) if lines else None


def _python_versions(python: str, packages: tuple[str, ...]) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json, platform, sys;"
        "print(json.dumps({p: m.version(p) for p in sys.argv[1:]}"
        " | {'python': platform.python_version()}))"
    )
    found: dict[str, str] = json.loads(output([python, "-c", code, *packages]))
    return found


def output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def run(command: list[str], name: str, fault: str = "cannot be installed here") -> None:
    """Run a step of an installation.

    Raises:
        MissingError: it failed. What it said is shown, but not kept: it may name hosts.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr[-500:], file=sys.stderr)
        raise MissingError(f"NOT MEASURED: {name} {fault}.")


def is_made(folder: Path, pins: Path) -> bool:
    note = folder / ".pins"
    return note.exists() and note.read_text() == _digest(pins)


def note_made(folder: Path, pins: Path) -> None:
    (folder / ".pins").write_text(_digest(pins))


def _digest(pins: Path) -> str:
    return hashlib.sha256(pins.read_bytes()).hexdigest()
