"""Gates with all that may happen before them, at random: nobody waits two seconds for nothing."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import Engine

from tasks_app.runtime.db.database import Database
from tests.pool.stateful.effort import EXAMPLES, STEPS
from tests.pool.stateful.rules_of_crowds import RulesOfCrowds

FEW = 20


@pytest.mark.test_all
@pytest.mark.timeout(0)
def test_if_a_gate_has_room_one_that_may_run_does_within_two_seconds(
    engine: Engine, database_url: str
) -> None:
    del engine  # it has been emptied
    shared = Database(database_url)

    class Machine(RulesOfCrowds):
        database = shared
        tally: ClassVar = Counter()

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES or FEW,
            stateful_step_count=STEPS,
            derandomize=not EXAMPLES,
            phases=tuple(Phase) if EXAMPLES else (Phase.generate,),
            database=None,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )

    shared.dispose()
    assert (
        min(Machine.tally[what] for what in ("began", "pending", "parked", "by several keys")) > FEW
    )
