"""Plans of what gates cost: as many rows are read as gates are asked about, however many wait."""

from __future__ import annotations

from uuid import UUID

import pytest

from tasks_app.domain.flow_control.admission import Capacity
from tasks_app.domain.flow_control.limits import Gate, GateKind
from tasks_app.pool.dispatch.set_aside import sweep_all
from tasks_app.pool.flow_control import capacity, order_and_limits, waiting_list
from tasks_app.pool.runs.claim import claim_clear
from tests.factory import claimer
from tests.pool.filled import Ask, Verb, statistics
from tests.pool.runs.query_plans import FILL, GROUP, NAMES, PAGES_A_ROW, STEPS_A_ROW

ORDERED, OWN = range(40_001, 48_001), range(90_001, 94_001)
KEYS = 400
FULL = (
    FILL
    + f"""
INSERT INTO task_pending (id, name, order_key, limit_key, due_at, scan_at,
        parked, parked_kind, parked_for)
    SELECT n, 'n1', 'k' || n % {KEYS}, 'tenant:' || n % {KEYS}, now() - interval '1h',
        CASE WHEN n % 3 = 0 THEN now() - interval '1h' ELSE now() + interval '1h' END,
        CASE n % 3 WHEN 1 THEN 'order k' || n % {KEYS}
                   WHEN 2 THEN 'limit key tenant:' || n % {KEYS} END,
        CASE n % 3 WHEN 1 THEN 'order' WHEN 2 THEN 'key' END,
        CASE n % 3 WHEN 1 THEN 'k' || n % {KEYS} WHEN 2 THEN 'tenant:' || n % {KEYS} END
    FROM generate_series({ORDERED.start}, {ORDERED.stop - 1}) AS n;
INSERT INTO task_pending (id, name, order_key, limit_key, state, attempt, lease_token, lease_until,
        owner, started_at, max_attempts, at_most_once)
    SELECT 50000 + n, 'n1', 'k' || n, 'tenant:' || n, 'RUNNING', 1, gen_random_uuid(),
        now() + interval '1h', 'w3', now(), 3, false
    FROM generate_series(1, {KEYS}) AS n;
INSERT INTO task_pending (id, name, limit_key, more_limit_keys, state, attempt, lease_token,
        lease_until, owner, started_at, max_attempts, at_most_once)
    SELECT 51000 + n, 'n1', 'tenant:' || n, ARRAY['bank:' || n % 7, 'region:' || n % 2], 'RUNNING',
        1, gen_random_uuid(), now() + interval '1h', 'w3', now(), 3, false
    FROM generate_series(1, 100) AS n;
INSERT INTO task_pending (id, name, limit_key, more_limit_keys)
    SELECT 80000 + n, 'n1', 'tenant:1', ARRAY['bank:' || n % 7] FROM generate_series(1, 4000) AS n;
INSERT INTO task_pending (id, name, queue, due_at, scan_at, parked, parked_kind, parked_for,
        expires_at)
    SELECT 70000 + n, 'n1', 'late', now() - interval '1h', now() + interval '1h',
        'order k1', 'order', 'k1',
        now() + (n % 10 - 1) * interval '1h'
    FROM generate_series(1, 4000) AS n;
INSERT INTO task_pending (id, name, queue, order_key, limit_key)
    SELECT n, 'n1', 'own', CASE n % 2 WHEN 0 THEN 'own' || n END,
        CASE n % 2 WHEN 1 THEN 'user:' || n END
    FROM generate_series({OWN.start}, {OWN.stop - 1}) AS n;
INSERT INTO task_limit (kind, target, most) VALUES ('key', 'user:*', 2), ('key', 'user:1', 2);
INSERT INTO task_error (id, name, order_key, state)
    SELECT 60000 + n, 'n1', 'k' || n % {KEYS}, 'FAILED' FROM generate_series(1, 2000) AS n;
INSERT INTO task_gate (gate, look_at)
    SELECT 'order k' || n, now() FROM generate_series(0, {KEYS}) AS n
    UNION ALL SELECT 'limit key tenant:' || n, NULL FROM generate_series(0, {KEYS}) AS n;
"""
)
IDS, OWN_IDS = list(ORDERED), list(OWN)
PAGES = PAGES_A_ROW + 15
"""Who was passed by may lie in any day's partition, each of which is probed: on 15 that is 39."""


def of(kind: GateKind, word: str, number: int) -> list[Gate]:
    return [Gate(kind, f"{word}{n}") for n in range(number)]


def line(connection, some: list[Gate]):
    rooms = dict.fromkeys(some, Capacity(1.0))
    front = dict.fromkeys(some, waiting_list._FRONT)
    return waiting_list._read(connection, dict.fromkeys(some, 1), rooms, front, None)


def go_on(connection, some: list[Gate]):
    values = {
        "gates": list(map(str, some)),
        **waiting_list._columns(some),
        "waits": [5.0] * len(some),
    }
    connection.execute(waiting_list._GO_ON, {**values, "ids": IDS[: len(some)], "now": None})


VERBS: dict[str, tuple[Verb, int]] = {
    "waiting": (
        lambda c, n: c.execute(
            order_and_limits._WAITING, {"ids": IDS[:n], "names": list(NAMES), "now": None}
        ).all(),
        GROUP,
    ),
    "lock": (lambda c, n: capacity.lock_buckets(c, of(GateKind.ORDER, "k", n)), GROUP),
    "who runs of order keys": (
        lambda c, n: capacity._running(c, of(GateKind.ORDER, "k", n)),
        GROUP,
    ),
    "who runs of limit keys": (
        lambda c, n: capacity._running(c, of(GateKind.KEY, "tenant:", n)),
        GROUP,
    ),
    "who runs of other limit keys": (
        lambda c, n: capacity._running(c, of(GateKind.KEY, "bank:", n)),
        GROUP,
    ),
    "who runs of a name": (lambda c, _: capacity._running(c, [Gate(GateKind.NAME, "n1")]), 1_500),
    "heads": (lambda c, n: capacity._heads(c, [f"k{i}" for i in range(n)], None), GROUP),
    "lock of keys": (lambda c, n: order_and_limits.lock_gates(c, OWN_IDS[:n]), GROUP),
    "passing": (lambda c, n: order_and_limits.find_clear_tasks(c, OWN_IDS[: n // 2]), GROUP),
    "passing of shared keys": (
        lambda c, n: order_and_limits.find_clear_tasks(c, IDS[: n // 2]),
        GROUP,
    ),
    "claim of clear": (
        lambda c, n: claim_clear(c, OWN_IDS[: n // 2], claimer(*NAMES), UUID(int=9)),
        GROUP,
    ),
    "park": (
        lambda c, n: c.execute(waiting_list._PARK[GateKind.ORDER], {"ids": IDS[:n], "now": None}),
        GROUP,
    ),
    "line": (lambda c, n: line(c, of(GateKind.ORDER, "k", n)), GROUP),
    "go on": (lambda c, n: go_on(c, of(GateKind.ORDER, "k", n)), GROUP),
    "anybody waits": (lambda c, _: waiting_list.gates_with_waiters(c, []), GROUP),
    "waited for": (
        lambda c, n: c.execute(
            waiting_list._WAITING, {"gates": list(map(str, of(GateKind.ORDER, "k", n)))}
        ),
        GROUP,
    ),
    "sweep": (sweep_all, GROUP),
    "passed by": (lambda c, n: order_and_limits.gates_of_tasks(c, IDS[:n]), GROUP),
    "overdue": (waiting_list.overdue_gates, GROUP),
    "in front": (
        lambda c, _: order_and_limits.find_gated_tasks(c, ["default", "q0"], NAMES),
        1_100,
    ),
}


@statistics
@pytest.mark.parametrize("name", VERBS)
def test_a_statement_reads_about_what_it_is_asked_for(ask: Ask, name: str) -> None:
    number = VERBS[name][1]

    plan = ask(name)

    assert plan.whole == ()
    assert plan.rows <= STEPS_A_ROW * number + 300
    assert plan.buffers <= PAGES * number + 1_000


def test_a_room_is_known_by_what_it_lets_pass() -> None:
    assert Capacity(1.0, head=7, ordered=True).admits(7)
    assert not Capacity(1.0, head=7, ordered=True).admits(8)
    assert not Capacity(0.0).admits(7)
