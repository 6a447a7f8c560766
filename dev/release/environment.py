"""An environment that has the package, some of its extras, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from venv import EnvBuilder

# Of the installation, not of the package.
_INSTALLERS = ("pip", "setuptools", "wheel")


class Environment:
    """Made when it is constructed, with the newest versions that it allows.

    Raises:
        subprocess.CalledProcessError: pip could not install it.
    """

    def __init__(self, folder: Path, archive: Path, extras: Sequence[str]) -> None:
        EnvBuilder(with_pip=True).create(folder)
        self.folder = folder
        self.bin = folder / "bin"
        wanted = f"{archive}[{','.join(extras)}]" if extras else str(archive)
        self.run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted)

    def run(
        self, command: str, *arguments: str, settings: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run one of its commands in its own folder.

        Raises:
            subprocess.CalledProcessError: It ended with another exit code than 0.
            subprocess.TimeoutExpired: It did not end in five minutes.
        """
        return subprocess.run(
            [self.bin / command, *arguments],
            cwd=self.folder,
            env=self.variables(settings),
            check=True,
            capture_output=True,
            timeout=300,
        )

    def variables(self, settings: Mapping[str, str] | None) -> dict[str, str]:
        """Return this process's without what would lead into a checkout, and ``settings``."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TASKS_APP_", "PYTHON", "VIRTUAL_ENV", "DJANGO_"))
        }
        return {**kept, "PATH": f"{self.bin}{os.pathsep}{kept['PATH']}", **(settings or {})}

    def licences(self) -> dict[str, str]:
        """Return package and licence, as each package says it itself."""
        asked = subprocess.run(
            [
                Path(sys.executable).parent / "pip-licenses",
                f"--python={self.bin / 'python'}",
                "--from=mixed",
                "--format=json",
                "--ignore-packages",
                *_INSTALLERS,
            ],
            check=True,
            capture_output=True,
        )
        return {each["Name"]: each["License"] for each in json.loads(asked.stdout)}


def told(failed: subprocess.CalledProcessError | subprocess.TimeoutExpired) -> str:
    """Return what failed and how it ended, without what it was told in full."""
    command = " ".join(str(word) for word in failed.cmd[:4] if "\n" not in str(word))
    lines = (failed.stderr or failed.stdout or b"").decode(errors="replace").strip().splitlines()
    return f"{command} failed: {' / '.join(lines[-3:]) or failed}"
