"""Faults of the servers, and of the connections to them."""

from __future__ import annotations

import base64
import json
import time
from contextlib import ExitStack, suppress

import psycopg
from sqlalchemy import text

from dev.torture.world import World

CLAIM, SETTLE = b"lease_token = ", b"WITH held AS"
"""Words of the statements whose request or reply is lost."""
BACKENDS = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"


def lose_claim(world: World) -> None:
    """A claim commits, and its child never hears of it (F24)."""
    world.database.lose_reply_to(CLAIM)


def lose_settle(world: World) -> None:
    """Outcomes are written, and their child never hears of it (F24)."""
    world.database.lose_reply_to(SETTLE)


def lose_commit(world: World) -> None:
    """A COMMIT is carried out, and whoever asked for it never hears of it (F24)."""
    world.database.lose_reply_to(b"COMMIT")


def lose_commit_request(world: World) -> None:
    """A COMMIT never arrives (F24)."""
    world.database.lose_request(b"COMMIT")


def cut_database(world: World) -> None:
    """Every connection to the database is reset (F11)."""
    world.database.cut()


def cut_broker(world: World) -> None:
    """Every connection to the broker is reset (F13)."""
    world.broker_line.cut()


def hush_database(world: World) -> None:
    """All connections to the database stay open, and nothing gets through for a while (F12)."""
    world.database.black_out()
    time.sleep(world.lease_s * 0.7)
    world.database.let_through()


def hush_broker(world: World) -> None:
    """All connections to the broker stay open, and nothing gets through for a while (F13)."""
    world.broker_line.black_out()
    time.sleep(world.lease_s * 0.7)
    world.broker_line.let_through()


def restart_database(world: World) -> None:
    """The database's processes are killed; it recovers from its log (F22)."""
    world.servers.postgres.kill()
    world.servers.postgres.start()


def terminate_backends(world: World) -> None:
    """All backends of ours are terminated (F32)."""
    world.ask(f"SELECT pg_terminate_backend(pid) {BACKENDS}")


def terminate_idle(world: World) -> None:
    """All connections that nobody uses just now are terminated (F32)."""
    world.ask(f"SELECT pg_terminate_backend(pid) {BACKENDS} AND state = 'idle'")


def cancel_statements(world: World) -> None:
    """What runs just now is cancelled, as by a statement timeout (F27)."""
    world.ask(f"SELECT pg_cancel_backend(pid) {BACKENDS} AND state <> 'idle'")


def lock_pool(world: World) -> None:
    """Somebody holds a lock on the whole pending pool (F27)."""
    with world.engine.begin() as connection:
        connection.execute(text("LOCK TABLE task_pending IN SHARE ROW EXCLUSIVE MODE"))
        time.sleep(world.rng.uniform(0.5, 2))


def lock_rows(world: World) -> None:
    """Somebody holds a hundred rows, the running ones too (F25, F27)."""
    with world.engine.begin() as connection:
        connection.execute(
            text("SELECT FROM task_pending ORDER BY random() LIMIT 100 FOR UPDATE SKIP LOCKED")
        )
        time.sleep(world.rng.uniform(0.5, 2))


def crowd_database(world: World) -> None:
    """Strangers take all connections that are left (F29)."""
    with ExitStack() as crowd:
        cut_database(world)
        with suppress(psycopg.OperationalError):
            while True:
                crowd.enter_context(psycopg.connect(world.psycopg_url))
        time.sleep(world.rng.uniform(0.5, 1.5))


def read_only(world: World) -> None:
    """The database is a standby for a while, as after a failover (F30)."""
    for value in ("on", "off"):
        with psycopg.connect(world.psycopg_url, autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode())
            connection.execute("SELECT pg_reload_conf()")
        if value == "on":
            time.sleep(world.rng.uniform(0.5, 1.5))


def hold_snapshot(world: World) -> None:
    """Somebody's transaction keeps vacuum from its work (F34)."""
    with world.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(text("SELECT count(*) FROM task_pending"))
        time.sleep(world.rng.uniform(1, 3))


def restart_broker(world: World) -> None:
    """The broker is killed and comes back with what it had written down (F15)."""
    world.servers.broker.kill()
    time.sleep(world.rng.uniform(0, 1))
    world.servers.broker.start()


def flush_broker(world: World) -> None:
    """The broker forgets everything (F16)."""
    world.servers.broker.forget()


def fill_broker(world: World) -> None:
    """The broker has no memory left (F19)."""
    with world.servers.broker.full():
        time.sleep(world.rng.uniform(0.5, 1.5))


def repeat_messages(world: World) -> None:
    """Every message that waits is delivered ten times more (F17)."""
    waiting = world.servers.broker.waiting()
    world.recorded += waiting
    world.servers.broker.deliver(waiting * 10)


def replay_messages(world: World) -> None:
    """Messages of long ago are delivered again (F18)."""
    repeat_messages(world)
    if world.recorded:
        world.servers.broker.deliver(world.rng.choices(world.recorded, k=50))


def forge_messages(world: World) -> None:
    """Strangers put into our queue what comes to their minds (F49)."""
    world.servers.broker.forge(
        [b"", b"{}", b"[]", b"\x00\xff", b'{"body": "W10=", "headers": {}}', b"9" * 5_000]
    )


def send_to_another_pool(world: World) -> None:
    """A pool whose broker this is, too, puts its messages into our queue (F49)."""
    foreign = [10**12 + world.rng.randrange(10**6) for _ in range(5)]
    body = base64.b64encode(json.dumps([[10**12, foreign], {}, {}]).encode()).decode()
    headers = {"task": "tasks_app.execute", "id": "another pool's", "lang": "py"}
    properties = {
        "correlation_id": "x",
        "delivery_mode": 2,
        "delivery_tag": str(foreign[0]),
        "delivery_info": {"exchange": "", "routing_key": "default"},
        "priority": 0,
        "body_encoding": "base64",
    }
    envelope = {
        "body": body,
        "headers": headers,
        "properties": properties,
        "content-encoding": "utf-8",
        "content-type": "application/json",
    }
    world.servers.broker.forge([json.dumps(envelope).encode()])


def lose_messages(world: World) -> None:
    """Half of what waits in the broker vanishes."""
    world.servers.broker.lose_half()


def restart_pooler(world: World) -> None:
    """A PgBouncer is killed and comes back (F22)."""
    if pooler := world.servers.pooler:
        pooler.kill()
        time.sleep(world.rng.uniform(0, 1))
        pooler.start()


def cut_pooler(world: World) -> None:
    """Every connection between PgBouncer and the database is reset (F11)."""
    if behind := world.servers.behind:
        behind.cut()


def hush_pooler(world: World) -> None:
    """All between PgBouncer and the database stays open, and nothing gets through (F12)."""
    if behind := world.servers.behind:
        behind.black_out()
        time.sleep(world.lease_s * 0.7)
        behind.let_through()


def lose_commit_behind(world: World) -> None:
    """A PgBouncer does not hear that a COMMIT was carried out (F24)."""
    if behind := world.servers.behind:
        behind.lose_reply_to(b"COMMIT")
