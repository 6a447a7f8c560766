"""Each SQLSTATE on each of our statements: twice, and for four seconds. About twenty minutes.

With ``-n 2`` half of it; the cells know nothing of each other.
"""

from __future__ import annotations

import pytest

from tests.runtime.bench import Bench
from tests.runtime.conftest import bench, refusals  # noqa: F401  the same workbench
from tests.runtime.refusing import CODES, WITH_BROKER, Refusals, endure, get_over

ALL = (*WITH_BROKER, "claim next")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("code", CODES)
def test_twice(bench: Bench, refusals: Refusals, code: str, name: str) -> None:  # noqa: F811
    get_over(bench, refusals, code, name)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("code", CODES)
def test_for_a_while(bench: Bench, refusals: Refusals, code: str, name: str) -> None:  # noqa: F811
    endure(bench, refusals, code, name)


@pytest.mark.parametrize("code", CODES)
def test_all_for_a_while(bench: Bench, refusals: Refusals, code: str) -> None:  # noqa: F811
    endure(bench, refusals, code, *WITH_BROKER)
