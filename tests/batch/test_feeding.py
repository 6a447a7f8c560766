"""A chunk that inserts into its own source is not given its own rows for ever."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from tasks_app.batch.planners.even import Even
from tasks_app.batch.planners.hashed import Hash
from tasks_app.domain.batch.records import BatchStatus
from tests.batch.yard import Yard

pytestmark = pytest.mark.test_all

MOST = 400
BEHIND = "INSERT INTO todo SELECT i + :by, 'fed', 0 FROM unnest(CAST(:ids AS bigint[])) i"


class Feeder:
    """A chunk handler that inserts a row behind all others for each that it is given."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.by = 0

    def __call__(self, ctx: Any, rows: Any) -> None:
        self.yard.note(ctx, rows)
        assert len(self.yard.calls) < MOST, "it feeds itself"
        self.by += 1_000
        ids = {"ids": [row.id for row in rows], "by": self.by}
        ctx.connection.execute(text(BEHIND), ids)


@pytest.mark.parametrize("commit", ["every", "end"])
@pytest.mark.parametrize("planner", [Even(parts=3), Even(parts=1), Hash(parts=2)])
def test_rows_behind_its_own_end_are_left_to_the_next_instance(
    yard: Yard, planner: Any, commit: str
) -> None:
    """A partition ends where it does when its first run starts, so one may be given another's."""
    yard.rows(60)

    step = yard.step(Feeder(yard), planner=planner, commit=commit)
    view = yard.run(yard.job(step))

    assert view.batch.status is BatchStatus.COMPLETED
    assert set(range(1, 61)) <= set(yard.done)
    assert len(yard.done) == len(set(yard.done)) == view.tallies["step"].counts.read < 250
    if planner == Even(parts=1):
        assert yard.done == list(range(1, 61))


def test_who_goes_on_after_a_crash_ends_where_the_first_run_would_have(yard: Yard) -> None:
    yard.rows(60)
    feeds = Feeder(yard)

    def chunk(ctx: Any, rows: Any) -> None:
        feeds(ctx, rows)
        if len(yard.calls) in (2, 5):
            raise SystemExit

    step = yard.step(chunk, cuts=(), max_attempts=5)
    view = yard.run(yard.job(step))

    assert view.batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 61))


def test_who_is_given_half_of_the_rest_ends_there_too(yard: Yard) -> None:
    yard.steal_at_once()
    yard.rows(430)

    view = yard.run(yard.job(yard.step(Feeder(yard), cuts=(), steal=True)))

    assert view.batch.status is BatchStatus.COMPLETED
    assert view.tallies["step"].total > 1
    assert yard.done == list(range(1, 431))


def test_rows_that_come_before_a_partition_starts_are_its_own(yard: Yard) -> None:
    yard.rows(60)
    begun = yard.start(yard.job(yard.step(cuts=(31,))))
    yard.plan()
    yard.rows(80)

    yard.bench.drain()

    assert yard.view(begun.batch_id).batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 81))


@pytest.mark.parametrize("how", ["clear", "reverse", "pop"])
def test_a_handler_may_do_with_its_list_what_it_likes(yard: Yard, how: str) -> None:
    yard.rows(60)

    def chunk(ctx: Any, rows: Any) -> None:
        yard.note(ctx, rows)
        getattr(rows, how)()

    view = yard.run(yard.job(yard.step(chunk, cuts=())))

    assert yard.done == list(range(1, 61))
    assert view.tallies["step"].counts[:3] == (60, 60, 0)
