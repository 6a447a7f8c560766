"""An old snapshot keeps dead rows from vacuum: who reads the end of the index only passes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.pool.dispatch.scan import find_due, find_upcoming
from tasks_app.pool.runs.claim import claim_next
from tests.factory import claimer, pending_task
from tests.pool.plans import Plan, prepared

DEAD = 3_000
PAGES = DEAD / 50
"""At least so many hold them: of the index and of the table."""
BORN = """
INSERT INTO task_pending (name, due_at, scan_at)
SELECT 't', now() - interval '1h', now() - interval '1h' FROM generate_series(1, :number)
"""


Verb = Callable[[Connection, timedelta | None], object]
VERBS: dict[str, Verb] = {
    "claim_next": lambda c, within: claim_next(
        c, ["default"], 1, claimer("t"), uuid4(), within=within
    ),
    "due": lambda c, within: find_due(c, {"default": 100}, within=within),
}


def plan(connection: Connection, verb: Callable[[Connection], object], name: str = "it") -> Plan:
    """Find one task, and count."""
    found = prepared(connection, name, verb).run(connection)
    connection.rollback()
    return found


@pytest.fixture
def dead(engine: Engine) -> Iterator[Connection]:
    """A connection, a task that is due, and before it thousands that vacuum must leave."""
    with engine.connect() as holder, engine.connect() as connection:
        holder.execution_options(isolation_level="REPEATABLE READ")
        holder.execute(text("SELECT 1 FROM task_pending"))
        connection.execute(text(BORN), {"number": DEAD})
        connection.commit()
        connection.execute(text("DELETE FROM task_pending"))
        connection.commit()
        pending_task(connection)
        connection.execute(text("SET enable_seqscan = off"))  # as for all that is ours
        connection.commit()
        yield connection
        connection.invalidate()  # with what it prepared
        holder.rollback()


@pytest.mark.parametrize("name", VERBS)
def test_who_looks_for_what_is_new_does_not_read_what_is_over(dead: Connection, name: str) -> None:
    verb = VERBS[name]

    whole = plan(dead, lambda c: verb(c, None), "whole")
    end = plan(dead, lambda c: verb(c, timedelta(seconds=30)), "newest")

    assert whole.buffers - end.buffers > PAGES, (end, whole)


def test_who_looks_ahead_does_not_read_what_is_over(dead: Connection) -> None:
    whole = plan(dead, lambda c: find_due(c, {"default": 100}), "whole")
    ahead = plan(dead, lambda c: find_upcoming(c, ["default"], timedelta(seconds=1)), "ahead")

    assert whole.buffers - ahead.buffers > PAGES, (ahead, whole)


def test_who_goes_on_behind_what_was_taken_does_not_read_what_is_over(dead: Connection) -> None:
    after = (datetime.now(UTC) - timedelta(minutes=1)).timestamp()

    def going_on(connection: Connection) -> None:
        places = {("default", 5): (after, 0)}
        claim_next(connection, ["default"], 1, claimer("t"), uuid4(), places=places)
        assert len(places) == 1

    whole = plan(dead, lambda c: VERBS["claim_next"](c, None), "whole")
    behind = plan(dead, going_on, "behind")

    assert whole.buffers - behind.buffers > PAGES, (behind, whole)
