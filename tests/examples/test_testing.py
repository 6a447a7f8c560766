"""The test suite of a new user: it passes as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.testing.test_plugin import INSTALLED, MODULE


@pytest.mark.test_all
def test_it_passes(project: Path, database_url: str, tmp_path: Path) -> None:
    ini = tmp_path / "pytest.ini"
    ini.write_text("[pytest]\nfilterwarnings = error\n")
    plugin = [] if INSTALLED else ["-p", MODULE]
    where = ["-c", str(ini), "--rootdir", ".", "--tasks-app-server", database_url]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, *where, "."],
        cwd=project / "examples/testing",
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert "11 passed" in done.stdout, done.stdout + done.stderr
