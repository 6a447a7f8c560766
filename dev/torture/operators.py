"""Disturbances by producers and operators."""

from __future__ import annotations

import time

from sqlalchemy import text

from dev.torture.world import World
from tasks_app import NewTask, TaskOptions, create_tasks, set_limit
from tasks_app.embedded.servers import ROLE
from tasks_app.pool.flow_control.queue_settings import pause, resume
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.requeue import requeue

_ANY = text("SELECT id FROM task_pending ORDER BY random() LIMIT 20")
_CANCELLED = text("""
    SELECT id FROM task_completed WHERE state = 'CANCELLED' AND queue <> 'aside'
    ORDER BY random() LIMIT 10
""")
"""Without those of the queue that stays paused: nobody would ever run them."""
_ASIDE = text("SELECT id FROM task_pending WHERE queue = 'aside'")
_SHARED = "torture"
_ODD = {
    "IntervalStyle": ("iso_8601", "sql_standard", "postgres_verbose"),
    "DateStyle": ("German", "SQL", "Postgres"),
    "client_encoding": ("LATIN1", "SQL_ASCII", "EUC_JP"),
    "TimeZone": ("Pacific/Chatham", "America/Sao_Paulo"),
    "extra_float_digits": ("-15",),
    "array_nulls": ("off",),
    "standard_conforming_strings": ("off",),
    "default_transaction_isolation": ("serializable", "repeatable read"),
    "quote_all_identifiers": ("on",),
    "plan_cache_mode": ("force_custom_plan",),
    "enable_indexscan": ("off",),
    "statement_timeout": ("9s",),
}
"""Settings of a role, none of which is to matter; our own engine keeps those it connected with."""
COMMITTED = text("INSERT INTO committed SELECT unnest(CAST(:ids AS bigint[]))")


def hold_producers(world: World) -> None:
    """Producers' transactions stay open, and commit in another order than they began (F55)."""
    connections = [world.engine.connect() for _ in range(5)]
    try:
        for connection in connections:
            ids = create_tasks(connection, [NewTask("torture.quick")] * 5)
            connection.execute(COMMITTED, {"ids": [int(i) for i in ids]})
        world.rng.shuffle(connections)
        for number, connection in enumerate(connections):
            time.sleep(world.rng.uniform(0, 0.5))
            if number:
                connection.commit()
            else:
                connection.rollback()
    finally:
        for connection in connections:
            connection.close()


def cancel_some(world: World) -> None:
    """Tasks are cancelled, waiting and running ones (F57)."""
    with world.engine.begin() as connection:
        for task_id in connection.execute(_ANY).scalars().all():
            cancel(connection, task_id)


def pause_beside_a_limit(world: World) -> None:
    """A queue is paused whose tasks stand before ours at one limit (F57)."""
    with world.engine.begin() as connection:
        set_limit(connection, "key", _SHARED, most=1)
        pause(connection, "aside", "torture")
        aside: TaskOptions = {"queue": "aside", "limit_key": _SHARED, "biz_key": "aside"}
        create_tasks(connection, [NewTask("torture.quick", None, aside)] * 5)
        ours = create_tasks(
            connection, [NewTask("torture.quick", None, {"limit_key": _SHARED})] * 3
        )
        connection.execute(COMMITTED, {"ids": [int(i) for i in ours]})
    time.sleep(world.rng.uniform(0.5, 1.5))
    with world.engine.begin() as connection:
        for task_id in connection.execute(_ASIDE).scalars().all():
            cancel(connection, task_id)


def set_odd_settings(world: World) -> None:
    """The role gets other settings, and everybody connects anew (F57)."""
    with world.engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER ROLE {ROLE} RESET ALL")
        for name, values in world.rng.sample(list(_ODD.items()), 4):
            connection.exec_driver_sql(
                f"ALTER ROLE {ROLE} SET {name} = '{world.rng.choice(values)}'"
            )
    world.database.cut()


def pause_and_resume(world: World) -> None:
    """The queue is stopped for a moment (F57)."""
    with world.engine.begin() as connection:
        pause(connection, "default", "torture")
    time.sleep(world.rng.uniform(0, 1))
    with world.engine.begin() as connection:
        resume(connection, "default")


def cancel_and_requeue(world: World) -> None:
    """Tasks are cancelled, and some of them wanted back (F57)."""
    cancel_some(world)
    with world.engine.begin() as connection:
        for task_id in connection.execute(_CANCELLED).scalars().all():
            requeue(connection, task_id)
