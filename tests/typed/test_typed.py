"""Both type checkers see what users mistake, and nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

import tasks_app
from tasks_app import testing

HERE = Path(__file__).parent
MISTAKES, CORRECT = HERE / "mistakes.py", HERE / "correct.py"
Faults = dict[tuple[str, int], str]


def by_mypy(_folder: Path) -> Faults:
    """Return what mypy says of each line; with the settings of `make check`, whose cache it has."""
    done = run("mypy", "--no-error-summary", str(MISTAKES), str(CORRECT))
    found = re.finditer(r"(\w+\.py):(\d+): error: (.*)", done)
    return {(fault[1], int(fault[2])): fault[3] for fault in found}


def by_pyright(folder: Path) -> Faults:
    """Return what pyright says; basedpyright is pyright with all that it needs in one wheel."""
    config = folder / "pyrightconfig.json"
    files = [str(MISTAKES), str(CORRECT)]
    config.write_text(json.dumps({"include": files, "typeCheckingMode": "standard"}))
    python = ("--pythonpath", sys.executable)
    done = run("basedpyright", "--outputjson", "--project", str(config), *python)
    return {
        (Path(fault["file"]).name, fault["range"]["start"]["line"] + 1): fault["message"]
        for fault in json.loads(done)["generalDiagnostics"]
        if fault["severity"] == "error"
    }


def run(checker: str, *arguments: str) -> str:
    """Return its report."""
    command = [sys.executable, "-m", checker, *arguments]
    done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stderr
    return done.stdout


@pytest.mark.test_all
@pytest.mark.timeout(600)
@pytest.mark.parametrize("checker", [by_mypy, by_pyright])
def test_each_mistake_is_found_and_nothing_else(
    checker: Callable[[Path], Faults], tmp_path: Path
) -> None:
    lines = enumerate(MISTAKES.read_text().splitlines(), 1)
    mistakes = {(MISTAKES.name, number) for number, line in lines if "# mistake" in line}

    found = checker(tmp_path)

    assert len(mistakes) > 60
    assert mistakes - found.keys() == set(), "not found"
    assert {place: found[place] for place in found.keys() - mistakes} == {}


FACE = {f"{module}.{name}" for name, module in tasks_app._MODULES.items()}


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
