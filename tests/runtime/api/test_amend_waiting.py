"""Single tasks that wait: what the answers say, and what the audit keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine

from tasks_app import (
    Changed,
    InvalidSelectionError,
    disable_task,
    enable_task,
    explain_task,
    hold_task,
    move_task,
    release_task,
    reprioritise_task,
    reschedule_task,
    run_bulk,
    run_task_now,
    start_bulk,
)
from tasks_app.pool.operations import audit
from tasks_app.pool.tasks.browse import get
from tasks_app.pool.tasks.cancel import cancel
from tests.factory import claimed_task, pending_task
from tests.runtime.api.bulk_rows import make

Verb = Callable[..., Changed]
VERBS: list[tuple[Verb, dict[str, Any], str, dict[str, Any]]] = [
    (run_task_now, {}, "due now", {}),
    (reschedule_task, {"delay": "2h"}, "rescheduled", {"delay": "2h"}),
    (reprioritise_task, {"to_priority": 0}, "reprioritised", {"to_priority": 0}),
    (move_task, {"to_queue": "slow"}, "moved", {"to_queue": "slow"}),
    (hold_task, {}, "held", {}),
    (disable_task, {}, "disabled", {}),
]
each_verb = pytest.mark.parametrize(
    ("verb", "words", "answer", "kept"), VERBS, ids=[verb.__name__ for verb, *_ in VERBS]
)


@each_verb
def test_it_is_noted_who_did_what_and_why(
    connection: Connection, verb: Verb, words: dict, answer: str, kept: dict
) -> None:
    task_id = pending_task(connection, delay="1h")

    assert verb(connection, task_id, by="anna", why="an outage", **words) is Changed.CHANGED

    (line,) = audit.find(connection)
    assert (line.who, line.ids, line.answers) == ("anna", [task_id], {answer: 1})
    assert line.what == {**kept, "why": "an outage"}
    assert line.action == verb.__name__.removesuffix("_task").replace("run_task_now", "run-now")


@each_verb
def test_what_does_not_wait_is_said_and_not_noted(
    connection: Connection, verb: Verb, words: dict, answer: str, kept: dict
) -> None:
    running, over = claimed_task(connection).task_id, pending_task(connection)
    cancel(connection, over)

    assert verb(connection, running, **words) is Changed.RUNNING
    assert verb(connection, over, **words) is Changed.ALREADY_OVER
    assert verb(connection, 10**9, **words) is Changed.NOT_FOUND
    assert audit.find(connection) == []


def test_what_is_so_already_is_unchanged(connection: Connection) -> None:
    task_id = pending_task(connection)

    assert run_task_now(connection, task_id) is Changed.UNCHANGED
    assert release_task(connection, task_id) is Changed.UNCHANGED
    assert enable_task(connection, task_id) is Changed.UNCHANGED
    assert move_task(connection, task_id, "default") is Changed.UNCHANGED


@pytest.mark.parametrize(
    ("verb", "words", "problem"),
    [
        (reschedule_task, {}, "reschedule needs at or delay"),
        (reschedule_task, {"delay": "soon"}, "options.delay is 'soon'"),
        (reschedule_task, {"at": "2030-01-01T00:00"}, "options.at has no time zone"),
        (reprioritise_task, {"to_priority": 10}, "options.to_priority is 10"),
        (move_task, {"to_queue": "no queue"}, "options.queue is 'no queue'"),
    ],
)
def test_nonsense_is_refused(connection: Connection, verb: Verb, words: dict, problem: str) -> None:
    task_id = pending_task(connection)

    with pytest.raises(InvalidSelectionError, match=problem):
        verb(connection, task_id, **words)

    assert audit.find(connection) == []


def test_explain_says_that_it_is_held_by_whom_and_why(connection: Connection) -> None:
    task_id = pending_task(connection, delay="1h")
    date = get(connection, task_id).due_at  # type: ignore[union-attr]
    hold_task(connection, task_id, by="anna", why="the bank asks")

    said = explain_task(connection, task_id)

    first = said.findings[0]
    assert first.fact.startswith("It was put on hold just now (")
    assert first.fact.endswith(") by anna: the bank asks")
    assert first.advice == f"To release it: tasks-app release {task_id}"
    assert (said.facts["held"], said.facts["due_at"]) == (True, date)
    assert "9899-01-01" not in f"{said.findings}{said.facts}"


def test_explain_knows_who_held_it_in_a_bulk(engine: Engine) -> None:
    (task_id,) = make(engine, 1)
    token = start_bulk(engine, "hold", name="t", by="anna", why="the bank asks")
    run_bulk(engine, token, by="bob")

    with engine.connect() as connection:
        fact = explain_task(connection, task_id).findings[0].fact

    assert fact.endswith(") by bob: the bank asks")


def test_explain_says_held_though_the_audit_was_cleared(connection: Connection) -> None:
    task_id = pending_task(connection)
    hold_task(connection, task_id)
    connection.exec_driver_sql("DELETE FROM task_audit")

    assert explain_task(connection, task_id).findings[0].fact == "It is on hold"


def test_a_disabled_one_that_is_held_names_no_date_and_how_to_enable_it(
    connection: Connection,
) -> None:
    task_id = pending_task(connection)
    disable_task(connection, task_id)
    hold_task(connection, task_id)

    _, disabled, *_ = explain_task(connection, task_id).findings

    assert disabled.fact == "It is disabled: it is skipped when it is due"
    assert disabled.advice == f"To run it anyway: tasks-app enable {task_id}"
