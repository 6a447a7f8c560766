"""The traces of the page are those that the model prints today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dev.torture.mutants.all import ALL as OF_THE_PRODUCT
from dev.verification import configurations, mutants
from dev.verification.report import print_trace, visit

REPLAY = re.compile(
    r'```\n\$ python -m dev.verification "(?P<name>[^"]+)"\n(?P<trace>.*?)```', re.S
)


@pytest.fixture
def page(project: Path) -> str:
    return (project / "docs" / "guarantees.md").read_text()


def test_each_trace_is_what_the_model_prints(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = {found["name"]: found["trace"] for found in REPLAY.finditer(page)}
    assert len(shown) >= 3
    for name, trace in shown.items():
        (mutant,) = (m for m in mutants.ALL if m.name == name)
        print_trace(visit(mutant.setup))
        assert trace == capsys.readouterr().out, name


def test_its_figures_are_those_of_today(page: str) -> None:
    for figure in (
        f"{len(configurations.ALL)} configurations",
        f"{len(mutants.ALL)} such mutants",
        f"takes {len(OF_THE_PRODUCT)} rules out",
    ):
        assert figure in page
