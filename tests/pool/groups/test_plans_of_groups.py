"""Plans of what groups cost: as much is read as members end, however many groups there are."""

from __future__ import annotations

from contextlib import suppress

import pytest
from sqlalchemy.exc import DatabaseError

from tasks_app.pool import task_groups
from tasks_app.pool.runs import settle
from tasks_app.pool.tasks import cancel, requeue
from tests.pool.filled import Ask, Verb, statistics
from tests.pool.runs.query_plans import (
    FILL,
    GROUP,
    PAGES_A_ROW,
    RUNNING,
    STEPS_A_ROW,
    WAITING,
    ending,
    last_word,
)

GROUPS = 8_000
FULL = (
    FILL
    + f"""
INSERT INTO task_group (id, total, failed, on_failure, callback_id)
    SELECT n, 2, 1, '{{"name": "else", "queue": "q", "priority": 5, "payload": {{}}, "delay": 0,
        "enabled": true, "retry_level": 0}}', 1000000 + n
    FROM generate_series(1, {GROUPS}) AS n;
INSERT INTO task_group_ids SELECT n, 0, ARRAY[n] FROM generate_series(1, {GROUPS}) AS n;
UPDATE task_pending SET batch_id = id % {GROUPS} + 1 WHERE id >= {RUNNING.start} OR id % 20 = 1;
"""
)


def lock(connection, number: int):
    return connection.execute(cancel._LOCK_THESE, {"ids": list(WAITING[:number])}).all()


def member_succeeds(connection, _: int):
    with suppress(DatabaseError), connection.begin_nested():  # of an empty pool: it has no claim
        return connection.exec_driver_sql(*last_word(", counts"))


VERBS: dict[str, tuple[Verb, int]] = {
    "settle": (
        lambda c, n: settle._moved(c, settle._GROUP, list(map(ending, RUNNING[:n])), None),
        GROUP,
    ),
    "settle one": (lambda c, _: settle._moved(c, settle.ONE, [ending(RUNNING[0])], None), 1),
    "succeed": (member_succeeds, 1),
    "lock to cancel": (lock, GROUP),
    "cancel": (
        lambda c, n: c.execute(cancel._MOVE(), {"ids": list(WAITING[:n]), "now": None}),
        GROUP,
    ),
    "get": (lambda c, _: task_groups.get_group(c, 7), 1),
    "page": (lambda c, _: list(task_groups.member_pages(c, 7)), 1),
    "take back": (
        lambda c, _: c.execute(requeue._TAKE_BACK, {"id": 7, "state": "FAILED"}),
        1,
    ),
}


@statistics
@pytest.mark.parametrize("name", VERBS)
def test_a_statement_reads_about_what_it_is_asked_for(ask: Ask, name: str) -> None:
    number = VERBS[name][1]

    plan = ask(name)

    assert plan.whole == ()
    assert plan.rows <= 3 * STEPS_A_ROW * number + 300
    assert plan.buffers <= 3 * PAGES_A_ROW * number + 1_000
