"""Limits in spawned children, which inherit neither memory nor signal handlers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.conftest import House

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(180, method="thread")]

CAUSES = {
    "late": "HandlerTimeoutError",
    "late.async": "HandlerTimeoutError",
    "hang": "process died",
    "stuck.async": "process died",
}
CHARGED = "SELECT count(*) FROM task_completed WHERE failures > 0 OR crashes > 0"


def test_limits_inside_a_message_hit_only_their_own_tasks(house: House, tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text("worker_pool_start_method = 'spawn'\n")
    house.worker(folder=tmp_path, TASKS_APP_LEASE="30s")
    house.beat(TASKS_APP_LEASE="30s")
    ids = {name: house.create(name)[0] for name in CAUSES}
    neighbours = [*house.create("ok", 60), *house.create("plain", 20)]

    states = house.over([*ids.values(), *neighbours], 60)

    assert states == {"FAILED": 4, "SUCCEEDED": 80}
    assert {name: house.attempts(i)[-1].kind for name, i in ids.items()} == CAUSES
    assert house.sql(CHARGED) == 0
    assert house.effects() == (60, 60)
