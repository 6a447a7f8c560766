"""What operators do with the tasks of one cause: marks, and requeues that stop by themselves."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Engine

from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.tasks.error_text import fingerprint_of
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.operations import audit
from tasks_app.pool.runs.settle import settle_one
from tasks_app.runtime.api.bulk import foresee_bulk, requeue_errors, run_bulk, start_bulk
from tasks_app.runtime.api.errors import list_errors, mark_error_known, mark_error_unknown
from tests.factory import claimed_task, ending
from tests.runtime.api.bulk_rows import failed_task, pools

CAUSE = Cause("shop.Away", "nobody")
HEX = fingerprint_of(CAUSE).hex()


def fail(engine: Engine, number: int) -> list[int]:
    with engine.begin() as connection:
        failed_task(connection, "Other", "m")
        return [failed_task(connection, "shop.Away", "nobody") for _ in range(number)]


def worker(engine: Engine, event: Event, cause: Cause | None = None):
    """End what waits, instead of a pause."""

    def work(_: float) -> None:
        with engine.begin() as connection:
            for task_id in pending(engine):
                task = claimed_task(connection, task_id)
                settle_one(connection, ending(task, event, cause=cause, failures=1))

    return work


def pending(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(
            connection.exec_driver_sql(
                "SELECT id FROM task_pending WHERE state = 'PENDING' AND due_at <= now()"
                " AND failures = 0"
            ).scalars()
        )


def test_a_bulk_is_chosen_by_fingerprint(engine: Engine) -> None:
    ids = fail(engine, 3)

    assert foresee_bulk(engine, "requeue", fingerprint=HEX).counts.total() == 3
    token = start_bulk(engine, "requeue", fingerprint=HEX.upper())
    assert run_bulk(engine, token, first=2).ids == ids[:2]
    assert run_bulk(engine, token).ids == ids[2:]


@pytest.mark.parametrize("words", [{"fingerprint": "12"}, {"fingerprint": HEX, "pool": "pending"}])
def test_a_wrong_selection_by_fingerprint_is_refused(engine: Engine, words: dict) -> None:
    with pytest.raises(InvalidSelectionError, match="fingerprint"):
        start_bulk(engine, "cancel" if "pool" in words else "requeue", **words)


def test_stages_follow_each_other_while_all_goes_well(engine: Engine) -> None:
    ids = fail(engine, 6)

    stages = list(
        requeue_errors(engine, HEX, (1, 2, None), by="ann", pause=worker(engine, Event.SUCCEED))
    )

    assert [stage.done.ids for stage in stages] == [ids[:1], ids[1:3], ids[3:]]
    assert {(stage.again, stage.going) for stage in stages} == {(0, 0)}
    assert pools(engine, ids) == {"completed SUCCEEDED": 3, "pending PENDING": 3}
    with engine.connect() as connection:
        assert {line.who for line in audit.steps(connection, stages[0].done.token)} == {"ann"}


@pytest.mark.parametrize("event", [Event.FAIL, Event.RETRY])
def test_no_stage_follows_when_the_same_error_comes_again(engine: Engine, event: Event) -> None:
    ids = fail(engine, 6)

    (stage,) = requeue_errors(engine, HEX, (2, None), pause=worker(engine, event, CAUSE))

    assert (stage.done.ids, stage.again, stage.going) == (ids[:2], 2, 0)
    assert run_bulk(engine, stage.done.token).ids[-4:] == ids[2:]


def test_another_error_does_not_stop_the_stages(engine: Engine) -> None:
    fail(engine, 3)

    stages = list(
        requeue_errors(
            engine, HEX, (1, None), pause=worker(engine, Event.FAIL, Cause("Another", "m"))
        )
    )

    assert [len(stage.done.ids) for stage in stages] == [1, 2]


def test_no_stage_follows_when_the_patience_is_over(engine: Engine) -> None:
    ids = fail(engine, 3)

    (stage,) = requeue_errors(engine, HEX, (1, None), patience=timedelta(0))

    assert (stage.done.ids, stage.again, stage.going) == (ids[:1], 0, 1)


def test_marks_are_noted_in_the_audit(engine: Engine) -> None:
    fail(engine, 1)
    with engine.begin() as connection:
        assert not mark_error_known(connection, "00" * 8, by="ann")
        assert mark_error_known(connection, HEX, by="ann", until=timedelta(days=1), note="n")
        found = list_errors(connection, fingerprint=HEX)[0]
        assert mark_error_unknown(connection, HEX, by="bob")
        assert not mark_error_unknown(connection, HEX)
        with pytest.raises(InvalidSelectionError, match="not a fingerprint"):
            mark_error_known(connection, "x", by="ann")
        told = [
            (line.who, line.action, line.what["fingerprint"]) for line in audit.find(connection)
        ]

    assert (found.known_by, found.note) == ("ann", "n")
    assert found.known_until is not None
    assert told == [("bob", "error unknown", HEX), ("ann", "error known", HEX)]
