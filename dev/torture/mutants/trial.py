"""A trial: some tests of the suite, run on a throw-away copy of the tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dev.torture.mutants.change import Mutant, apply, restore

PROJECT = Path(__file__).parents[3]
COPIED = (*("tasks_app", "tests", "dev", "examples", "migrations", "docs"),)
PATIENCE_S = 300.0
VERDICTS = frozenset({"AssertionError", "Failed", "IntegrityError", "PlanError"})
"""How a test says that a rule is broken: it asserts, pytest does, or a constraint of the tables.
A mutant that cannot be imported, or whose SQL is not SQL, proves nothing."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one run of tests."""

    failed: tuple[tuple[str, str], ...]
    """Test and kind of error."""
    passed: int
    seconds: float
    trouble: str | None = None
    """Why it says nothing of the product."""

    @property
    def caught(self) -> bool:
        """Whether a test failed because of what the product did."""
        return self.trouble is None and any(kind in VERDICTS for _, kind in self.failed)

    @property
    def clean(self) -> bool:
        """Whether all passed."""
        return self.trouble is None and not self.failed and self.passed > 0


@contextmanager
def copy_of_the_tree() -> Iterator[Path]:
    """Make a copy without compiled files, and remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="tasks_app-mutants-"))
    folder.chmod(0o755)  # servers run as another user, if this one is root
    try:
        for name in COPIED:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(PROJECT / name, folder / name, ignore=ignored)
        for file in ("pyproject.toml", "celeryconfig.py"):
            shutil.copy2(PROJECT / file, folder / file)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def try_mutant(mutant: Mutant, tree: Path) -> Trial:
    """Run the mutant's tests on it.

    Raises:
        StaleMutantError: it is not of this tree.
    """
    before = apply(mutant, tree)
    try:
        return run_tests(mutant.tests, tree, mutant.files)
    finally:
        restore(before, tree)


def run_tests(tests: Iterable[str], tree: Path, files: Sequence[str]) -> Trial:
    """Run tests in the tree, with its code before that of the virtual environment."""
    says = tree / "says.json"
    says.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",  # a mutant and what it was may have one size and one second
        "WITNESS_TREE": str(tree),
        "WITNESS_FILES": json.dumps(list(files)),
        "WITNESS_SAYS": str(says),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "dev.torture.mutants.witness", *tests]
    began = time.monotonic()
    run = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = run.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        run.terminate()  # pytest stops its servers
        run.communicate()
        return Trial((), 0, time.monotonic() - began, f"no end within {PATIENCE_S:g} s")
    seconds = time.monotonic() - began
    if not says.exists():
        return Trial((), 0, seconds, f"pytest said nothing:\n{output[-2000:]}")
    word = json.loads(says.read_text())
    failed = tuple((f["test"], f["kind"]) for f in word["failures"] if f["phase"] == "call")
    trouble = None
    if word["strangers"]:
        trouble = f"the tests ran on other code: {word['strangers']}"
    elif not failed and not word["passed"]:
        trouble = f"no test ran:\n{output[-2000:]}"
    elif any(f["phase"] == "setup" for f in word["failures"]):
        trouble = f"a fixture failed:\n{output[-2000:]}"
    return Trial(failed, len(word["passed"]), seconds, trouble)
