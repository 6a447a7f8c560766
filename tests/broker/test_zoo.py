"""Every kind of hostile handler in real workers: each leaves its outcome, and work goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.conftest import House
from tests.broker.house.zoo import KINDS
from tests.broker.visit import ENVIRONMENT, Visit

KILLERS = ("sigkill", "exits_0", "memory_error", "hang_with_the_gil", "daemon_and_exit")
"""Those that end it in different ways: a spawned child is slow to start."""

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(300, method="thread")]


@pytest.fixture(autouse=True, scope="module")
def _beat(house: House) -> None:
    house.beat(**ENVIRONMENT)


def test_every_kind_leaves_its_outcome_and_no_neighbour_is_charged(house: House) -> None:
    visit = Visit(house, children=4)
    wrong = visit.see(KINDS.values())
    assert wrong == {}
    visit.ends_well()


def test_kinds_that_kill_their_process_do_the_same_in_spawned_children(
    house: House, tmp_path: Path
) -> None:
    (tmp_path / "celeryconfig.py").write_text("worker_pool_start_method = 'spawn'\n")
    visit = Visit(house, children=2, folder=tmp_path)
    wrong = visit.see(KINDS[f"zoo.{name}"] for name in KILLERS)
    assert wrong == {}
    visit.ends_well()
