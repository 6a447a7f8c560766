"""Plans: what each hot statement reads is bounded by what it returns, whatever is known of it.

Planned while the pool was empty, without statistics and with fresh ones. Rows and pages are
counted, never times.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from tasks_app.domain.tasks.run import Fence
from tasks_app.pool import metrics
from tasks_app.pool.dispatch.scan import find_due, find_upcoming
from tasks_app.pool.dispatch.set_aside import park_tasks, sweep, tasks_of_other_workers
from tasks_app.pool.flow_control import circuit_breakers
from tasks_app.pool.operations.diagnostics import due_work
from tasks_app.pool.runs import settle
from tasks_app.pool.runs.claim import Claims, claim, claim_next, still_pending
from tasks_app.pool.runs.leases import release, renew, rescue_claims, rescue_expired
from tasks_app.pool.runs.settle import still_held
from tasks_app.pool.tasks.browse import find_tasks, get
from tests.factory import LEASE, claimer, unknown
from tests.pool.database import Ask, Verb, statistics
from tests.pool.runs.racing import (
    FILL,
    GROUP,
    NAMES,
    OVER_OF_QUERY_PLANS,
    PAGES_A_ROW,
    RUNNING,
    STEPS_A_ROW,
    TOKEN,
    WAITING,
    some_outcome,
)

FULL = FILL


def fences(number: int) -> list[Fence]:
    return [Fence(task_id, 1, TOKEN) for task_id in RUNNING[:number]]


DUE = [n for n in WAITING if n % 2 == 0]
VERBS: dict[str, tuple[Verb, int]] = {
    "due": (lambda c, n: find_due(c, {"q0": n}), GROUP),
    "due, further on": (
        lambda c, n: find_due(c, {"q0": n}, after={("q0", p): (0.0, 1) for p in range(10)}),
        GROUP,
    ),
    "upcoming": (lambda c, n: find_upcoming(c, ["q1"], timedelta(hours=2), n), 10),
    "claim": (lambda c, n: claim(c, DUE[:n], claimer(*NAMES), uuid4()), GROUP),
    "claim_one": (lambda c, n: claim(c, DUE[:n], claimer(*NAMES), uuid4()), 1),
    "claim_unhindered": (
        lambda c, n: claim(c, DUE[:n], claimer(*NAMES), uuid4(), Claims.UNHINDERED),
        GROUP,
    ),
    "claim_unhindered_one": (
        lambda c, n: claim(c, DUE[:n], claimer(*NAMES), uuid4(), Claims.UNHINDERED),
        1,
    ),
    # It locks as many of each priority that the queue has, five here.
    "claim_next": (lambda c, n: claim_next(c, ["q0"], n // 5, claimer(*NAMES), uuid4()), GROUP),
    "still pending": (lambda c, n: still_pending(c, DUE[:n]), GROUP),
    "of_others": (lambda c, n: tasks_of_other_workers(c, DUE[:n], NAMES), GROUP),
    "settle_group": (
        lambda c, n: settle._moved(c, settle._GROUP, list(map(some_outcome, RUNNING[:n])), None),
        GROUP,
    ),
    "settle_one": (lambda c, _: settle._moved(c, settle.ONE, [some_outcome(RUNNING[0])], None), 1),
    "still_held": (lambda c, n: still_held(c, fences(n)), GROUP),
    "renew": (lambda c, n: renew(c, fences(n), LEASE), GROUP),
    "release": (lambda c, n: release(c, fences(n)), GROUP),
    "rescue_claims": (lambda c, n: rescue_claims(c, fences(n), lease=LEASE, max_crashes=5), GROUP),
    "rescue_expired": (
        lambda c, _: rescue_expired(c, lease=LEASE, max_crashes=5),
        len(OVER_OF_QUERY_PLANS),
    ),
    "hold for a breaker": (lambda c, n: circuit_breakers.hold_tasks(c, DUE[:n]), GROUP),
    "park": (lambda c, n: park_tasks(c, DUE[:n], unknown("why"), LEASE), GROUP),
    "sweep": (lambda c, n: sweep(c, DUE[:n]), GROUP),
    "get": (lambda c, _: get(c, 1), 1),
    "due_work": (lambda c, _: due_work(c), len(DUE)),
    "find": (lambda c, n: find_tasks(c, state="FAILED", most=n), 50),
    "waiting": (lambda c, _: metrics.waiting_tasks(c), 1),
    "parked": (lambda c, _: metrics.parked_tasks(c), 1),
    "running": (lambda c, _: metrics.running_tasks(c), 1),
    "failed": (lambda c, _: metrics.failed_tasks(c, timedelta(hours=1)), 1),
    "limits": (lambda c, _: metrics.limits_in_use(c), 1),
    "idle queues": (lambda c, n: find_due(c, {f"idle{i}": 500 for i in range(n)}), 100),
}


SCRAPES = ("waiting", "parked", "running", "failed", "limits")
"""Counts, which come out of indexes."""


@statistics
@pytest.mark.parametrize("name", sorted({*VERBS} - {*SCRAPES}))
def test_a_statement_reads_about_what_it_returns(ask: Ask, name: str) -> None:
    number = VERBS[name][1]
    plan = ask(name)
    assert plan.whole == ()
    assert plan.rows <= STEPS_A_ROW * number + 300
    assert plan.buffers <= PAGES_A_ROW * number + 1_000


@statistics
@pytest.mark.parametrize("name", SCRAPES)
def test_a_scrape_reads_no_pool_from_end_to_end(ask: Ask, name: str) -> None:
    plan = ask(name)
    assert plan.whole == ()
    assert "task_pending_pkey" not in plan.indexes


@statistics
def test_pending_rows_are_counted_in_the_index_of_the_scan(ask: Ask) -> None:
    plan = ask("waiting")
    assert "Index Only Scan task_pending_scan" in plan.nodes
    assert plan.indexes == {"task_pending_scan"}
