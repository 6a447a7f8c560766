"""The gate closes when something became slower."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dev.benchmarks import gate
from dev.benchmarks.calibration import calibrate

RECORDED = dict.fromkeys(gate.TOLERANCES, 8.0)


def test_what_was_recorded_passes() -> None:
    assert all(finding.holds for finding in gate.judge(RECORDED, RECORDED))


@pytest.mark.parametrize("name", gate.TOLERANCES)
def test_any_figure_half_as_much_again_is_refused(name: str) -> None:
    findings = gate.judge(RECORDED, RECORDED | {name: RECORDED[name] * 1.5})

    assert [finding.name for finding in findings if not finding.holds] == [name]


def test_what_was_never_recorded_is_refused() -> None:
    assert not any(finding.holds for finding in gate.judge({}, RECORDED))


@pytest.mark.test_all
def test_the_gate_says_what_became_slower_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gate.json"
    monkeypatch.setattr(gate, "measure", lambda burn_ns=0: RECORDED)
    assert gate.gate(record=True, path=path) == 0
    assert json.loads(path.read_text())["figures"] == RECORDED
    assert gate.gate(path=path) == 0

    monkeypatch.setattr(gate, "measure", lambda burn_ns=0: RECORDED | {"noop_cpu": 12.0})
    assert gate.gate(path=path) == 1
    said = capsys.readouterr().out
    assert "BAD noop_cpu" in said
    assert "1.50 x" in said


def test_the_slowness_that_is_tried_is_that_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "calibrate", lambda: 150.0)
    known = {"figures": {"noop_cpu": 0.5}}

    assert gate._burn_ns(known, 1.0) == 0
    assert gate._burn_ns(known, 1.5) == 37_500  # half of 0.5 x 150 us


@pytest.mark.test_all
def test_the_calibration_takes_cpu_time() -> None:
    assert 1 < calibrate() < 60_000
