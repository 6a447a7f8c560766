"""Both type checkers see what users mistake, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MISTAKES, CORRECT = HERE / "mistakes.py", HERE / "correct.py"
Faults = dict[tuple[str, int], str]

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(600)]


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
