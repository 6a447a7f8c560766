"""The demo as a newcomer runs it: real servers, workers, beat, Flower and mails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tasks_app.embedded import temporary

pytestmark = [pytest.mark.processes, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One folder for all runs here: the second day must not stumble over the first."""
    with temporary() as stack:
        stack.down()
        yield stack.folder


def run_demo(folder: Path, examples: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shop", "--once", "--no-ui", "--orders=15"]
    return subprocess.run(
        [*command, f"--folder={folder}", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(examples), "TASKS_APP_DATABASE_URL": "nowhere"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


def test_a_day_passes_every_check_and_leaves_no_process(folder: Path, examples: Path) -> None:
    ended = run_demo(folder, examples)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("✔") >= 16
    assert [word in ended.stdout for word in ("⚡ kill -9", "⚡ FLUSHALL")] == [True, True]
    assert "Traceback" not in ended.stdout + ended.stderr
    assert left_running(folder) == []


def test_a_spoiled_row_fails_the_next_day_in_the_same_folder(folder: Path, examples: Path) -> None:
    ended = run_demo(folder, examples, "--sabotage")

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "✘ Every order has its points exactly once" in ended.stdout
    assert "worker.log" in ended.stdout


def left_running(folder: Path) -> list[str]:
    """Return what still runs in the folder: our processes have it as their working directory."""
    here = str(folder.resolve())
    processes = psutil.process_iter(["cwd", "cmdline"])
    return [" ".join(p.info["cmdline"] or []) for p in processes if p.info["cwd"] == here]
