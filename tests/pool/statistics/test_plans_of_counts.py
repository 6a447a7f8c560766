"""Plans: reads of the counters look at the rows of their time, whatever else is kept."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tasks_app.pool.statistics.read import (
    Grain,
    Wanted,
    history,
    most_failing,
    run_histograms,
    slowest,
)
from tests.pool.database import Ask, Verb, statistics

MINUTES, KEYS, READ = 600, 40, 10
FULL = f"""
INSERT INTO task_count (span, at, name, queue, outcome, number, wait_ms, run_ms, waits, runs)
SELECT 1, date_trunc('minute', now()) - m * interval '1 min', 'n' || k, 'q' || k % 4, 1 + k % 2 * 4,
    7, 70, 70, array_fill(1, ARRAY[7]), array_fill(1, ARRAY[7])
FROM generate_series(0, {MINUTES - 1}) AS m, generate_series(0, {KEYS - 1}) AS k
"""
LATELY = Wanted(Grain.MINUTE, timedelta(minutes=READ))
VERBS: dict[str, tuple[Verb, int]] = {
    "history": (lambda c, _: history(c, LATELY), 0),
    "history of a name": (lambda c, _: history(c, LATELY._replace(name="n2")), 0),
    "times": (lambda c, _: run_histograms(c, LATELY, by="queue"), 0),
    "slowest": (lambda c, _: slowest(c, LATELY), 0),
    "most failing": (lambda c, _: most_failing(c, LATELY), 0),
}


@statistics
@pytest.mark.parametrize("verb", VERBS)
def test_only_rows_of_the_time_are_read(ask: Ask, verb: str) -> None:
    plan = ask(verb)
    read = (READ + 2) * KEYS
    assert plan.indexes == {"task_count_pkey"}
    assert plan.rows <= 6 * read, plan
    assert plan.buffers <= read, plan
