"""Producers, and time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule
from sqlalchemy import Connection

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.tasks.records import TaskRow
from tasks_app.pool.tasks.create import create_many, create_one
from tests.pool.stateful.oracle_of_people import Picks, create
from tests.pool.stateful.world import GIVE_UP, View, seats, ways_out

SECONDS = st.sampled_from((1, 4, 12, 31, 31, 600))


def often(usual: Any, *rare: Any) -> st.SearchStrategy:
    return st.sampled_from((usual,) * (2 * len(rare)) + rare)


wishes = st.fixed_dictionaries(
    {
        "name": st.sampled_from(("a", "a", "b", "once")),
        "n": st.integers(0, 9),
        "queue": often("q1", "q2"),
        "priority": often(5, 0),
        "biz_key": often(None, "order:1"),
        "unique_key": often(None, "u", "v"),
        "enabled": often(True, False),
        "delay": often(None, 3, 60),
        "expires": often(None, 2, 40),
        "max_attempts": often(None, 1, 2),
        "wait_first": often(False, True),
        "order_key": often(None, "o", "p"),
        "skips": st.booleans(),
    }
)


class Producers(Picks):
    """What they create commits, or it never was."""

    @rule(seat=seats, wish=wishes, way_out=ways_out)
    def create_one(self, seat: int, wish: dict, way_out: str) -> None:
        self.produce(seat, [self.row(wish)], way_out, one=True)

    @rule(seat=seats, wishes=st.lists(wishes, min_size=2, max_size=5))
    def create_many(self, seat: int, wishes: list[dict]) -> None:
        self.produce(seat, [self.row(wish) for wish in wishes])

    @rule(span=SECONDS)
    def time_passes(self, span: int) -> None:
        self.later(timedelta(seconds=span))

    def row(self, wish: dict) -> TaskRow:
        wish = dict(wish)
        name, n = wish.pop("name"), wish.pop("n")
        expires, skips = wish.pop("expires"), wish.pop("skips")
        if skips and wish["order_key"]:
            wish["order_policy"] = "skips"
        if expires:
            wish["expires_at"] = self.now + timedelta(seconds=expires)
        if wish["wait_first"]:
            wish["retry"] = "5s,30s"
        return validate_task(NewTask(name, {"n": n}, wish), None, 65536)

    def produce(
        self, seat: int, rows: list[TaskRow], way_out: str = GIVE_UP, *, one: bool = False
    ) -> None:
        now = self.now

        def call(connection: Connection) -> list[tuple[int, bool]]:
            if one:
                made = [create_one(connection, rows[0], now=now)]
            else:
                made = create_many(connection, rows, now=now)
            return [(int(task_id), task_id.created) for task_id in made]

        def foresee(view: View, answer: list[tuple[int, bool]] | None):
            ids = answer or [(-number, True) for number, _ in enumerate(rows)]
            created = [(row, *id_and_word) for row, id_and_word in zip(rows, ids, strict=True)]
            return create(view, created, now)

        made = self.do(seat, call, foresee, way_out) or []
        self.ids += [task_id for task_id, is_new in made if is_new]
