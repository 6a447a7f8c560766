"""Every kind of hostile handler, again and again: killers 20 times, the others 5 times."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from tests.broker.conftest import House
from tests.broker.house.zoo import KINDS
from tests.broker.visit import ENVIRONMENT, Visit

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(1800, method="thread")]

KILLERS = [kind for kind in KINDS.values() if kind.kills]
OTHERS = [kind for kind in KINDS.values() if not kind.kills]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_no_kind_kills_the_parent_and_each_run_leaves_its_outcome(
    house: House, tmp_path: Path, method: str
) -> None:
    (tmp_path / "celeryconfig.py").write_text(f"worker_pool_start_method = {method!r}\n")
    house.beat(**ENVIRONMENT)
    visit = Visit(house, children=4 if method == "fork" else 2, folder=tmp_path)
    parent = psutil.Process(visit.worker.pid)
    born, began = parent.create_time(), time.monotonic()

    wrong = visit.see([*KILLERS * 20, *OTHERS * 5], timeout_s=1500)

    visit.report(method, time.monotonic() - began)
    assert wrong == {}
    assert parent.is_running()
    assert parent.create_time() == born
    visit.ends_well()
