"""All verbs of the pool in any order, in open transactions too, against a model in a dictionary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import Engine, create_engine, text

from tasks_app.runtime.db.database import Database
from tests.pool.stateful.crowds import RulesOfCrowds
from tests.pool.stateful.promises import Promises
from tests.pool.stateful.world import EXAMPLES, STEPS

QUICK = 60
MANY = 500
"""Of so many examples no rule is without an effect."""
READS = {"look", "scan"}


@pytest.fixture
def impatient(engine: Engine, database_url: str) -> Iterator[Engine]:
    """Connections on which whoever waits unforeseen fails soon."""
    options = "-c lock_timeout=2s -c synchronous_commit=off"
    impatient = create_engine(
        database_url,
        isolation_level="READ COMMITTED",
        pool_size=8,
        connect_args={"options": options},
    )
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE stateful_effect (task_id bigint, attempt int)"))
    yield impatient
    impatient.dispose()
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE stateful_effect"))


@pytest.mark.test_all
@pytest.mark.timeout(0)
def test_the_pool_does_what_the_model_does(impatient: Engine) -> None:
    class Machine(Promises):
        engine = impatient
        tally: ClassVar = Counter()

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES or QUICK,
            stateful_step_count=STEPS,
            derandomize=not EXAMPLES,
            phases=tuple(Phase) if EXAMPLES else (Phase.generate,),
            database=None,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )

    for (rule, what), times in sorted(Machine.tally.items()):
        print(f"{rule:>30} {what:<15} {times:>7}")
    print(f"{Machine.tally.total():>54}")
    rules = {rule for rule, _ in Machine.tally} - READS
    idle = {rule for rule in rules if not Machine.tally[rule, "changed"]}
    assert not idle or EXAMPLES < MANY


FEW = 20


@pytest.mark.test_all
@pytest.mark.timeout(0)
def test_if_a_gate_has_room_one_runs_within_two_seconds(engine: Engine, database_url: str) -> None:
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
        min(
            Machine.tally[what]
            for what in ("began", "pending", "parked", "by several keys", "locked")
        )
        > FEW
    )
