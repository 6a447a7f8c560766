"""All that users import is typed completely, as pyright counts it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import tasks_app
from tasks_app import testing

FACE = {f"tasks_app.{room}.{name}" for name, room in tasks_app._HOME.items()}
FACE |= {f"tasks_app.testing.{room}.{name}" for name, room in testing._HOME.items()}
MODULES = ("tasks_app.locks", "tasks_app.alembic")


def is_of_the_face(name: str) -> bool:
    parts = name.split(".")
    within = (".".join(parts[:length]) for length in range(2, len(parts) + 1))
    return name.startswith(MODULES) or any(part in FACE for part in within)


@pytest.mark.test_all
@pytest.mark.timeout(600)
def test_every_public_name_is_of_a_known_type(tmp_path: Path) -> None:
    """The package is copied, as pyright does not follow an editable install."""
    venv.create(tmp_path / "venv", symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = tmp_path / "venv" / "lib" / version / "site-packages"
    shutil.copytree(Path(tasks_app.__file__).parent, packages / "tasks_app")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    command = [sys.executable, "-m", "basedpyright", "--verifytypes", "tasks_app"]

    done = subprocess.run(
        [*command, "--ignoreexternal", "--outputjson"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path / 'venv' / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )

    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    face = [symbol for symbol in symbols if is_of_the_face(symbol["name"])]
    unclear = [s["name"] for s in face if s["isTypeAmbiguous"] or not s["isTypeKnown"]]
    assert len(face) > 500
    assert unclear == []
