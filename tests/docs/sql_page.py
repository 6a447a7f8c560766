"""The page of the hot path's SQL: what is sent, and how PostgreSQL must carry it out.

``python -m tests.docs.sql_page`` writes it for the site.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DatabaseError

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.embedded.stack import temporary
from tasks_app.pool.connection.execute import Statement
from tasks_app.pool.connection.execute import fetch as send
from tasks_app.pool.dispatch.scan import find_due
from tasks_app.pool.flow_control import capacity, waiting_list
from tasks_app.pool.runs import settle
from tasks_app.pool.runs.claim import Claims, claim, claim_next
from tasks_app.pool.runs.leases import EXPIRED, VANISHED_VALUES, renew, rescue_expired
from tasks_app.pool.schema import migrate
from tasks_app.pool.tables import NOW
from tasks_app.pool.tasks.amend import _NEXT
from tasks_app.pool.tasks.create import create_one
from tests.factory import LEASE, claimer
from tests.pool.database import sent_by
from tests.pool.runs import racing
from tests.pool.runs import test_plans as runs

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sql.md"
ROWS = 50_000
OVER = {"grace": timedelta(0), "lease": LEASE, "max_crashes": 5, "now": None}
FULL = (
    runs.FILL
    + f"""
INSERT INTO task_pending (id, name, queue, due_at, scan_at)
    SELECT 1000000 + n, 'n1', 'later', now() + interval '1d', now() + interval '1d'
    FROM generate_series(1, {ROWS // 2}) AS n;
INSERT INTO task_pending (id, name, order_key, due_at, scan_at, parked, parked_kind, parked_for)
    SELECT 2000000 + n, 'n1', 'k' || n % 400, now() - interval '1h', now() + interval '1d',
        'order k' || n % 400, 'order', 'k' || n % 400
    FROM generate_series(1, {ROWS // 2}) AS n;
INSERT INTO task_gate (gate, look_at)
    SELECT 'order k' || n, now() FROM generate_series(0, 399) AS n;
SELECT setval(pg_get_serial_sequence('task_pending', 'id'), 9000000);
"""
)
NUMBER = 100
"""Tasks of a message, or of a group that is settled together."""


class Hot(NamedTuple):
    """One statement of the hot path."""

    title: str
    where: str
    says: str
    plan: str
    """The nodes of its plan, each with its index or table."""
    verb: Callable[[Connection], object]


def _successes(connection: Connection) -> object:
    endings = [racing.some_outcome(n) for n in runs.RUNNING[:NUMBER] if n % 10 > 1]
    return connection.execute(
        settle._SUCCEEDED(), {**settle._successes(endings), "now": None}
    ).all()


def _success(connection: Connection) -> object:
    with suppress(DatabaseError), connection.begin_nested():  # of an empty pool: it has no claim
        return send(connection, Statement(*racing.last_word()))


def _line(connection: Connection) -> object:
    gates = [capacity.Gate(capacity.GateKind.ORDER, "k1")]
    rooms = dict.fromkeys(gates, capacity.Capacity(1.0))
    return waiting_list._read(
        connection, {gates[0]: 1}, rooms, {gates[0]: waiting_list._FRONT}, None
    )


HOT = (
    Hot(
        "create",
        "tasks_app/pool/tasks/insert.py",
        "One INSERT; a column is written only where it differs from its default.",
        "Insert task_pending",
        lambda c: create_one(c, validate_task(NewTask("n1", {"a": 1}), None, 65536)),
    ),
    Hot(
        "scan",
        "tasks_app/pool/dispatch/scan.py",
        "Reads what is due from the front of one index, queue by queue and priority by priority.",
        "Index Only Scan task_pending_scan; Index Scan task_pending_scan",
        lambda c: find_due(c, {"q0": 200}),
    ),
    Hot(
        "claim, unhindered",
        "tasks_app/pool/runs/claim.py",
        "The short way: where no queue, name or task is an exception.",
        "Index Scan task_pending_pkey; Update task_pending",
        lambda c: claim(c, runs.DUE[:NUMBER], claimer(*runs.NAMES), uuid4(), Claims.UNHINDERED),
    ),
    Hot(
        "claim",
        "tasks_app/pool/runs/claim.py, claim_sql.py",
        "The long way: queues that stand still, breakers, queues' defaults, tasks that run alone.",
        "Index Scan task_pending_pkey; Update task_pending",
        lambda c: claim(c, runs.DUE[:NUMBER], claimer(*runs.NAMES), uuid4()),
    ),
    Hot(
        "claim the next",
        "tasks_app/pool/runs/claim.py",
        "Without a message: for `tasks-app work`, and for a child that has room.",
        "Index Scan task_pending_pkey; Index Scan task_pending_scan; Update task_pending",
        lambda c: claim_next(c, ["q0"], 40, claimer(*runs.NAMES), uuid4()),
    ),
    Hot(
        "renew",
        "tasks_app/pool/runs/leases.py",
        "Writes `lease_until`, which is in no index, so the update stays on its page.",
        "Index Scan task_pending_pkey; Index Scan task_pending_running; Update task_pending",
        lambda c: renew(c, runs.fences(NUMBER), LEASE),
    ),
    Hot(
        "settle one success",
        "tasks_app/pool/runs/settle_success.py",
        "In the transaction of the handler's own rows.",
        "Delete task_pending; Index Scan task_pending_running; Insert task_completed",
        _success,
    ),
    Hot(
        "settle successes",
        "tasks_app/pool/runs/settle.py",
        "A group of them; rows that somebody has locked are left out.",
        "Delete task_pending; Index Scan task_pending_pkey; Index Scan "
        "task_pending_running; Insert task_completed",
        _successes,
    ),
    Hot(
        "settle any outcome",
        "tasks_app/pool/runs/settle.py, fragments/move_rows.py",
        "Back to PENDING, to the completed pool or to the error pool, with a line of history.",
        "Delete task_pending; Index Scan task_group_pkey; Index Scan "
        "task_pending_pkey; Index Scan task_pending_running; Insert "
        "task_attempt; Insert task_completed; Insert task_error; Insert "
        "task_pending; Update task_group; Update task_pending",
        lambda c: settle._moved(
            c, settle._GROUP, list(map(racing.some_outcome, runs.RUNNING[:NUMBER])), None
        ),
    ),
    Hot(
        "rescue: whose lease is over",
        "tasks_app/pool/runs/leases.py",
        "Looks at RUNNING rows alone.",
        "Index Scan task_pending_running",
        lambda c: rescue_expired(c, lease=LEASE, max_crashes=5),
    ),
    Hot(
        "rescue",
        "tasks_app/pool/runs/leases.py, fragments/move_rows.py",
        "Looks at the lease again as it writes.",
        "Delete task_pending; Index Scan task_group_pkey; Index Scan "
        "task_pending_pkey; Index Scan task_pending_running; Insert "
        "task_attempt; Insert task_completed; Insert task_error; Insert "
        "task_pending; Update task_group; Update task_pending",
        lambda c: c.execute(EXPIRED(), {**VANISHED_VALUES, **OVER, "ids": [1, 2]}),
    ),
    Hot(
        "wake: who waits",
        "tasks_app/pool/flow_control/waiting_list.py",
        "Finds by kind and subject who is parked before a gate, however many are.",
        "Index Scan task_pending_parked_for",
        _line,
    ),
    Hot(
        "cancel: who waits behind it",
        "tasks_app/pool/tasks/cancel.py",
        "The first of its order key that is parked for it.",
        "Index Scan task_pending_order; Index Scan task_pending_pkey; Update task_pending",
        lambda c: c.execute(_NEXT, {"keys": ["k1"], "now": None}),
    ),
)
VERBS = {hot.title: (lambda c, _, hot=hot: hot.verb(c), NUMBER) for hot in HOT}
_HEAD = f"""# The SQL of the hot path

Written by `make site` from what the code sends. Under each statement stands how it must reach the
pools: the nodes of its plan with their index or table. `tests/docs/test_links.py` compares them
with EXPLAIN in a pool of {ROWS:,} rows.

`NOW` is `coalesce(CAST(:now AS timestamptz), statement_timestamp())`; only tests give `:now`.
"""


def page(connection: Connection) -> str:
    """Return the page, from the statements as this code sends them."""
    return "\n".join([_HEAD, *(_section(connection, hot) for hot in HOT)])


def _section(connection: Connection, hot: Hot) -> str:
    sql = _laid_out(sent_by(connection, hot.verb))
    files = hot.where.replace(", ", "`, `")
    plan = "\n".join(f"- `{node}`" for node in hot.plan.split("; "))
    says = f"`{files}`. {hot.says}"
    return f"## {hot.title}\n\n{says}\n\n```sql\n{sql}\n```\n\nIts plan:\n\n{plan}\n"


def _laid_out(statement: str) -> str:
    """Indent by brackets; the sources' own indentation is that of several files."""
    statement = re.sub(r"%\((\w+)\)s", r":\1", statement).replace("%%", "%")
    statement = statement.replace(NOW, "NOW")
    lines, depth = [], 0
    for line in filter(None, map(str.strip, statement.splitlines())):
        lines.append("  " * max(0, depth - line.startswith(")")) + " ".join(line.split()))
        depth += line.count("(") - line.count(")")
    return "\n".join(lines)


def main() -> None:
    """Write the page, from a new database on a server of its own."""
    with temporary() as servers:
        engine = create_engine(servers.urls.database)
        with engine.begin() as connection:
            migrate(connection)
            PAGE.write_text(page(connection))
        engine.dispose()


if __name__ == "__main__":
    main()
