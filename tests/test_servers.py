"""Databases on a server that is not ours: they go, also when their session was killed."""

from __future__ import annotations

from sqlalchemy import create_engine, make_url, text

from tests.servers import PREFIX, Databases

KILLED, LIVING = f"{PREFIX}{0:08x}", f"{PREFIX}{1:08x}"
THERE = text(f"SELECT datname FROM pg_database WHERE datname ~ '^{PREFIX}0000000' ORDER BY 1")


def test_what_a_killed_session_left_is_dropped_and_what_a_living_one_has_is_not(
    database_url: str,
) -> None:
    engine = create_engine(database_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as living:
        living.exec_driver_sql(f"SET application_name = '{LIVING}'")
        for owner in (KILLED, LIVING):
            living.exec_driver_sql(f"CREATE DATABASE {owner}_x")
        with Databases(database_url).guarded():
            assert list(living.execute(THERE).scalars()) == [f"{LIVING}_x"]
    engine.dispose()

    with Databases(database_url).guarded() as databases:
        url = databases.create("mine")
    engine = create_engine(database_url)
    with engine.connect() as connection:
        there = set(connection.execute(text("SELECT datname FROM pg_database")).scalars())
    engine.dispose()
    assert not there & {f"{KILLED}_x", f"{LIVING}_x", make_url(url).database}
