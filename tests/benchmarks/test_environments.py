"""What cannot be had is said, and pins name no hosts."""

from __future__ import annotations

import json
import sys

import pytest

from dev.benchmarks.environments import PEERS, MissingError, newest_python, run


def test_what_needs_a_python_that_is_not_here_is_not_measured() -> None:
    with pytest.raises(MissingError, match=r"^NOT MEASURED: x needs Python 3\.99, which is not"):
        newest_python("x", (3, 99))

    assert newest_python("x", (3, 11)) == sys.executable


@pytest.mark.test_all
def test_a_step_that_fails_is_told_without_what_it_said(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(MissingError) as caught:
        run([sys.executable, "-c", "raise SystemExit('no https://host/')"], "x")

    assert str(caught.value) == "NOT MEASURED: x cannot be installed here."
    assert "no https://host/" in capfd.readouterr().err


def test_no_pin_says_where_it_came_from() -> None:
    for file in PEERS.glob("*/package-lock.json"):
        packages = json.loads(file.read_text())["packages"].values()
        assert not [package for package in packages if "resolved" in package], file
    for file in PEERS.glob("*/requirements.txt"):
        assert "://" not in file.read_text(), file
