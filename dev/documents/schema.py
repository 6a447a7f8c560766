"""docs/reference/schema.md: tables, columns and indexes, from a migrated database's COMMENTs."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, text

from dev.documents.source import cell, generated
from tasks_app.pool.operations.erase import USER_VALUES, Erased

ABOUT = r"""
Alembic owns the tables (`migrations/`). `tasks-app migrate` brings them up to date, in the schema
that `TASKS_APP_SCHEMA` names or, without it, in the first one of the connection's search path. Read
the tables as you like. Write through `create_task` or [`task_create()`](#task_create), cancel and
requeue: CHECK constraints repeat the [states and moves](../lifecycle.md), but only our statements
have the fence.

The table in which a task's row lies is half of its state: `task_pending` (PENDING, RUNNING),
`task_completed` (SUCCEEDED, SKIPPED, CANCELLED, EXPIRED) or `task_error` (FAILED). An id lies in
exactly one of them. `psql` shows the same texts: `\d+ task_pending`.

*Values* stands at each column that may hold a value of a user, or a key: whether
[`tasks-app erase`](../operations/secrets.md#erase) takes them away, whether people see them
[masked](../operations/secrets.md#mask), whether they are encrypted where
[the task is](../operations/secrets.md#encrypt), and whether
[`tasks-app export`](../operations/export.md) takes them along.
"""
SEE = {
    "task_queue": "[queues](../operations/pause.md)",
    "task_queue_fair": "[fair queues](../operations/limits.md#fair-queues)",
    "task_queue_pause": "[queues](../operations/pause.md)",
    "task_breaker": "[outages and breakers](../operations/breakers.md)",
    "task_schedule": "[schedules](../schedules.md)",
    "task_key": "[unique keys](../producing.md#unique-keys)",
    "task_lock": "[locks](../locks.md)",
    "task_limit": "[order and limits](../producing.md#order-and-limits)",
    "task_group": "[groups](../groups.md)",
    "task_progress": "[checkpoints](../groups.md#checkpoints)",
    "task_step": "[kept steps](../groups.md#kept-steps)",
    "task_audit": "[who did what](../operations/bulk.md#who-did-what)",
    "task_partition": "[partitions](../batch.md#partitions)",
    "task_batch": "[batch jobs](../batch.md)",
    "task_completed": "[retention](../operations/maintenance.md)",
    "tasks_app_version": "[upgrades](../operations/upgrades.md)",
}
"""Where a page says more."""
FIRST = ("task_pending", "task_completed", "task_error", "task_all")
FUNCTIONS = """
## task_create

`SELECT task_create(name, payload, …)` inserts one row in your transaction and returns its id. When
the `unique_key` is taken, it returns the id of the task that has it; other scopes and policies
than the default ones are not offered here. Only the name must be given. Give the others by name:
`task_create('mail.send', '{}', delay => '10m')`.

The function checks what the CHECK constraints of the table say: names, priority, length of keys,
years, a JSON object, at most 8 MiB. It does not know the handler's model: a payload that does not
fit fails at its first run.

"""
ARGUMENTS = {
    "queue": "handlers are not known here, so name the handler's queue",
    "run_at": "null: now",
    "delay": "is added to `run_at`",
    "max_attempts": "null: what `retry` implies, else the handler's",
    "retry": "null: the handler's; a policy that cannot be read counts as none",
    "more_limit_keys": "up to seven behind `limit_key`; it runs while each has room",
    "locks": 'what it locks while it runs: `{"exclusive": ["account:7"]}`; also `shared`, and'
    " numbers by name in `counted`",
    "order_key": "a failed task holds the later ones (`blocks`); producers do not wait for each"
    " other",
}
POOL = """
## task_pool

`task_pool()` returns what the name of the pool is made of. Messages carry that name, so that two
pools on one broker do not run each other's tasks.

## task_group_extend

`task_group_extend(to_group, members)` lets a group wait for more tasks, with the rights of the
owner: a producer's role may change nothing else of a group. False: the group is over, or there is
none.

## task_notify

`task_notify()` is for the trigger of `tasks-app notify install`, which tells workers by NOTIFY
which queues got a task that is due ([tasks created in SQL](../operations/hints.md)).
"""
ERASED = dict.fromkeys(Erased, "erased") | {
    Erased.LEFT: "left while something is to run",
    Erased.KEPT: "not erased",
}
PROTECTED = ("masked", "encrypted", "exported")
_VALUES = {value.name: value for value in USER_VALUES}
_TABLES = text("""
    SELECT c.oid, c.relname AS name, c.relkind AS kind, obj_description(c.oid, 'pg_class') AS about
    FROM pg_class c
    WHERE c.relnamespace = CAST(current_schema AS regnamespace) AND c.relkind IN ('r', 'p', 'v')
      AND NOT c.relispartition AND c.relname ~ '^tasks?_'
""")
_COLUMNS = text("""
    SELECT c.relname AS table, a.attname AS name, format_type(a.atttypid, a.atttypmod) AS kind,
        col_description(c.oid, a.attnum) AS about
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    WHERE c.oid = ANY(:tables) AND NOT a.attisdropped ORDER BY c.relname, a.attnum
""")
_INDEXES = text("""
    SELECT c.relname AS table, pg_get_indexdef(i.indexrelid) AS definition,
        i.indisprimary AS is_primary
    FROM pg_class c JOIN pg_index i ON i.indrelid = c.oid
    WHERE c.oid = ANY(:tables) ORDER BY c.relname, i.indisprimary DESC, 2
""")
_ARGUMENTS = text(r"""
    SELECT pg_get_function_arguments(oid) FROM pg_proc
    WHERE proname = 'task_create' AND pronamespace = CAST(current_schema AS regnamespace)
""")


def page(connection: Connection) -> str:
    """Return the page about the schema that the connection finds first."""
    tables = sorted(connection.execute(_TABLES), key=lambda row: (_place(row.name), row.name))
    oids = {"tables": [row.oid for row in tables]}
    columns = _by_table(connection.execute(_COLUMNS, oids))
    indexes = _by_table(connection.execute(_INDEXES, oids))
    lines = generated("Schema", "migrations/baseline/", ABOUT)
    for table in tables:
        see = f" See {SEE[table.name]}." if table.name in SEE else ""
        view = "A view. " if table.kind == "v" else ""
        lines += [f"## {table.name}", "", f"{view}{table.about}{see}", ""]
        lines += ["| column | type | meaning |", "|---|---|---|"]
        lines += [
            f"| `{row.name}` | {_short(row.kind)} | {cell(_meaning(row))} |"
            for row in columns[table.name]
        ]
        lines += ["", *_index_lines(indexes.get(table.name, []))]
    return "\n".join(lines).rstrip("\n") + "\n" + _functions(connection)


def uncommented(connection: Connection) -> list[str]:
    """Name the tables, views and columns that have no comment."""
    tables = connection.execute(_TABLES).all()
    columns = connection.execute(_COLUMNS, {"tables": [row.oid for row in tables]})
    return [row.name for row in tables if not row.about] + [
        f"{row.table}.{row.name}" for row in columns if not row.about
    ]


def _meaning(row: Any) -> str:
    """Return what a column is, and of one with users' values what protects them."""
    value = _VALUES.get(f"{row.table}.{row.name}")
    said = [] if value is None else [ERASED[value.erased]]
    said += [word for word in PROTECTED if value and getattr(value, word)]
    values = f"*Values: {', '.join(said)}.*" if said else None
    return " ".join(filter(None, (row.about, values)))


def _place(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)


def _by_table(rows: object) -> dict[str, list]:  # type: ignore[type-arg]
    return {name: list(some) for name, some in groupby(rows, key=lambda row: row.table)}  # type: ignore[call-overload]


def _short(kind: str) -> str:
    return kind.replace(" with time zone", "tz").replace(" without time zone", "")


def _index_lines(indexes: list) -> list[str]:  # type: ignore[type-arg]
    """Say by what an index finds rows; how PostgreSQL writes expressions differs by version."""
    if not indexes:
        return []
    lines = []
    for index in indexes:
        _, brin, what = index.definition.partition(" USING brin ")
        what = "brin " * bool(brin) + (what or index.definition.partition(" USING btree ")[2])
        what = " ".join(what.split())
        unique = "primary key" if index.is_primary else "unique" * ("UNIQUE" in index.definition)
        lines.append(f"- {unique} `{what}`" if unique else f"- `{what}`")
    return ["Indexes:", "", *lines, ""]


def _functions(connection: Connection) -> str:
    rows = ["| argument | type | default | |", "|---|---|---|---|"]
    for argument in connection.execute(_ARGUMENTS).scalar_one().split(", "):
        declared, _, default = argument.partition(" DEFAULT ")
        name, kind = declared.split(" ", 1)
        shown = f"`{re.sub(r'::.*', '', default)}`" if default else ""
        rows.append(f"| `{name}` | {kind} | {shown} | {ARGUMENTS.get(name, '')} |")
    return FUNCTIONS + "\n".join(rows) + "\n" + POOL
