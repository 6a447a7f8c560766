"""Transactions that only look, and not for long: those of pages and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import Connection, Engine, text

_ONLY = text("SET TRANSACTION READ ONLY")
_LONGEST = text("SELECT set_config('statement_timeout', :span, true)")


@contextmanager
def looking(engine: Engine, longest: timedelta) -> Iterator[Connection]:
    """Open a transaction that cannot write, none of whose statements takes longer than that."""
    with engine.begin() as connection:
        connection.execute(_ONLY)
        connection.execute(_LONGEST, {"span": f"{longest // timedelta(milliseconds=1)}ms"})
        yield connection
