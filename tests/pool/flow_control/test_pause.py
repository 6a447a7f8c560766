"""Pause: nothing of a stopped queue is claimed, and its rows stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.errors import InvalidTaskError
from tasks_app.pool.flow_control.queue_settings import Pause, find_pauses, pause, resume
from tasks_app.pool.fragments.conditions import scan_position_values
from tasks_app.pool.runs import claim as claims
from tasks_app.pool.runs.claim import claim, claim_next
from tasks_app.pool.tasks import browse
from tests.factory import claimer, pending_task, row_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)


def claimed(connection: Connection, ids: list[int]) -> list[int]:
    """What a message would take."""
    return [t.task_id for t in claim(connection, ids, claimer(), uuid4(), now=LATER)]


def next_ids(connection: Connection) -> list[int]:
    """What a worker without a broker would take."""
    queues = ("mail", "default")
    return sorted(
        t.task_id for t in claim_next(connection, queues, 10, claimer(), uuid4(), now=LATER)
    )


def test_a_paused_queue_is_not_claimed_and_others_are(connection: Connection) -> None:
    mail = pending_task(connection, queue="mail", now=NOON)
    other = pending_task(connection, now=NOON)
    before = row_of(connection, mail)

    pause(connection, "mail")

    assert claimed(connection, [mail]) == []
    assert next_ids(connection) == [other]
    assert row_of(connection, mail) == before


def test_all_queues_can_be_paused_at_once(connection: Connection) -> None:
    ids = [pending_task(connection, queue=queue, now=NOON) for queue in ("mail", "default")]

    pause(connection, "*")
    assert (claimed(connection, ids), next_ids(connection)) == ([], [])

    resume(connection, "*")
    assert next_ids(connection) == ids


@pytest.mark.parametrize("take", ["message", "next"])
def test_after_resume_rows_run_at_once(connection: Connection, take: str) -> None:
    mail = pending_task(connection, queue="mail", now=NOON)
    pause(connection, "mail")
    claimed(connection, [mail])

    resume(connection, "mail")

    found = claimed(connection, [mail]) if take == "message" else next_ids(connection)
    assert found == [mail]


def test_a_pause_keeps_its_beginning_and_reason(connection: Connection) -> None:
    assert pause(connection, "mail", "provider\0 is down", now=NOON)
    assert not pause(connection, "mail", "another", now=LATER)

    assert find_pauses(connection) == [Pause("mail", NOON, "provider\ufffd is down")]
    assert resume(connection, "mail") == ["mail"]
    assert resume(connection, "mail") == []
    assert find_pauses(connection) == []


def test_resuming_one_queue_leaves_the_others_and_resuming_all_leaves_none(
    connection: Connection,
) -> None:
    for queue in ("a", "b", "*"):
        pause(connection, queue)

    assert resume(connection, "a") == ["a"]
    assert {row.queue for row in find_pauses(connection)} == {"b", "*"}
    assert sorted(resume(connection, "*")) == ["*", "b"]


@pytest.mark.parametrize("queue", ["", "a b", "**", "x" * 101])
def test_what_is_no_queue_is_refused(connection: Connection, queue: str) -> None:
    with pytest.raises(InvalidTaskError):
        pause(connection, queue)
    with pytest.raises(InvalidTaskError):
        resume(connection, queue)


def test_stats_say_which_tasks_stand_still(connection: Connection) -> None:
    pending_task(connection, queue="mail")
    pending_task(connection)

    pause(connection, "mail")

    assert {c.queue: c.paused for c in browse.count_tasks(connection)} == {
        "mail": True,
        "default": False,
    }


def nodes(plan: dict[str, Any], below: str | None = None) -> Iterator[dict[str, Any]]:
    """All nodes of a plan; with ``below``, those under the CTE of that name."""
    inside = below is None or plan.get("Subplan Name") == below
    if inside:
        yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child, None if inside else below)


@pytest.mark.parametrize(("stopped", "loops"), [("other", 10), ("mail", 0), ("*", 0)])
def test_the_rows_of_a_paused_queue_are_not_even_looked_at(
    connection: Connection, stopped: str, loops: int
) -> None:
    """Or each claim would read all of them, however many wait."""
    pending_task(connection, queue="mail", now=NOON)
    pause(connection, stopped)
    values = {**claims.values_of(claimer(), uuid4()), "queues": ["mail"], "most": 10}
    values |= {"lonely": True, "within": None, "now": LATER}
    values |= scan_position_values(["mail"], None)
    statement = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {claims._NEXT.text}"

    (plan,) = connection.execute(text(statement), values).scalar_one()

    candidates = nodes(plan["Plan"], "CTE candidate")
    scans = [node for node in candidates if node.get("Relation Name") == "task_pending"]
    assert [node["Actual Loops"] for node in scans] == [loops]
