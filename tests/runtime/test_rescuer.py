"""The rescuer: takes back what vanished workers held, but not at the first sight of trouble."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from tasks_app.runtime.database import Database
from tasks_app.runtime.rescuer import Rescuer
from tests.factory import claimed_task
from tests.runtime.bench import Bench
from tests.waiting import until
from torture.fault_proxy import FaultProxy

LATER = datetime.now(UTC) + timedelta(hours=1)


def test_a_lapsed_lease_is_rescued_and_a_valid_one_is_not(bench: Bench) -> None:
    database = Database(bench.url)
    bench.at_end(database.dispose)
    with bench.engine.begin() as connection:
        task = claimed_task(connection)
    rescuer = Rescuer(bench.settings(), database)

    too_early, in_time = rescuer.run_once(), rescuer.run_once(now=LATER)

    assert (too_early, in_time) == ({}, {task.task_id: "PENDING"})
    assert bench.task(task.task_id).crashes == 1


def test_after_an_outage_the_workers_have_time_to_renew_first(bench: Bench) -> None:
    """Interleaving: the database is away beyond the lease; it returns; workers renew; rescue."""
    with bench.engine.begin() as connection:
        task = claimed_task(connection)
    url = make_url(bench.url)
    with FaultProxy((url.host or "", url.port or 0)) as proxy:
        proxied = url.set(port=proxy.port).render_as_string(hide_password=False)
        database = Database(proxied)
        bench.at_end(database.dispose)
        rescuer = Rescuer(bench.settings(lease=1.5), database)
        proxy.refusing = True
        with pytest.raises(OperationalError):
            rescuer.run_once(now=LATER)
        proxy.refusing = False

        at_once = rescuer.run_once(now=LATER)
        waited = until(lambda: rescuer.run_once(now=LATER), 5)
        database.dispose()

    assert (at_once, waited) == ({}, {task.task_id: "PENDING"})
