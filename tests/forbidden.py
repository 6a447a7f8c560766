"""Rows that a table of ours refuses for the length of a block, as it would those of a bug."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine


@contextmanager
def forbidden(engine: Engine, table: str, which: str) -> Iterator[None]:
    """Let a CHECK refuse rows that fulfil the condition ``which``."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"ALTER TABLE {table} ADD CONSTRAINT forbidden CHECK ({which} IS NOT TRUE) NOT VALID"
        )
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {table} DROP CONSTRAINT forbidden")
