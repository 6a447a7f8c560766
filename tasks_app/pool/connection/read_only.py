"""Transactions that only look, and not for long: those of pages and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import Connection, Engine, text

# To compile a statement would take longer than to run it.
_LOOK = text("""
    SELECT set_config('transaction_read_only', 'on', true), set_config('jit', 'off', true),
        set_config('statement_timeout', :span, true)
""")


@contextmanager
def looking(engine: Engine, longest: timedelta) -> Iterator[Connection]:
    """Open a transaction that cannot write, none of whose statements takes longer than that."""
    with engine.begin() as connection:
        connection.execute(_LOOK, {"span": f"{longest // timedelta(milliseconds=1)}ms"})
        yield connection
