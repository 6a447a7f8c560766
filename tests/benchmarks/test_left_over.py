"""Workers of a run that was killed would take the messages of the next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dev.benchmarks import run
from dev.benchmarks.processes import left_over


@pytest.mark.test_all
def test_nothing_is_measured_beside_processes_of_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "BENCH_MARKS"
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        env={**os.environ, name: "x"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert other.pid in left_over(name)

        assert run.run(run.Choice(), tmp_path / "results") == 1

        assert str(other.pid) in capsys.readouterr().err
        assert not (tmp_path / "results").exists()
        other.communicate(b"\n")
    assert other.pid not in left_over(name)
