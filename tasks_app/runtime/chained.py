"""Connections on which the end of one short run takes a single round trip, and begins the next.

The last statement and the COMMIT travel together. What is sent need not be waited for at once.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import psycopg
from psycopg import errors, generators
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from sqlalchemy import Connection, Engine, event

from tasks_app.pool.succeed import LastWord

_CHAIN = b"COMMIT AND CHAIN"
_OF_TRANSACTIONS = frozenset({"isolation_level", "postgresql_readonly", "postgresql_deferrable"})


class Chained(psycopg.Connection[Any]):
    """Of handlers."""

    _last: tuple[LastWord, bool] | None = None
    """What the next COMMIT takes along, and whether it begins another transaction."""
    _sent = False
    """Whether a COMMIT is on its way."""
    _names: set[bytes] | None = None
    """Those of the statements that are prepared here."""

    def can_end_with(self) -> bool:
        """Whether :meth:`end_with` may be called: in a sound transaction, where names last."""
        return (
            self.pgconn.transaction_status == TransactionStatus.INTRANS
            and self.pgconn.pipeline_status == PipelineStatus.OFF
            and self.prepare_threshold is not None  # none: a pooler deals out its servers
            and self.info.encoding == "utf-8"  # that of a last word
        )

    def end_with(self, last: LastWord, *, chain: bool) -> None:
        """Let the next :meth:`commit` say this first, and fail with it.

        With ``chain`` it begins another transaction, of which nobody knows: what comes next finds
        one that has done nothing, or begins one.
        """
        self._last = last, chain

    def send(self) -> None:
        """Send the COMMIT and what it takes along; :meth:`commit` then waits for the answers.

        Nothing else may happen on this connection before.
        """
        assert self._last is not None  # noqa: S101  it ends with something
        last, chain = self._last
        self._prepare(last.name, last.sql, last.types)
        if chain:
            self._prepare(_CHAIN, _CHAIN)
        self._last = None
        pgconn = self.pgconn
        pgconn.enter_pipeline_mode()
        self._sent = True
        pgconn.send_query_prepared(last.name, last.values)
        if chain:
            pgconn.send_query_prepared(_CHAIN, ())
        else:
            pgconn.send_query_params(b"COMMIT", None)
        pgconn.pipeline_sync()
        if pgconn.flush():
            self.wait(generators.send(pgconn))

    def commit(self) -> None:
        """Commit, or wait for the COMMIT that was sent; one that fails leaves no transaction."""
        if self._last is None and not self._sent:
            super().commit()
            return
        try:
            if self._last is not None:
                self.send()
            with self.lock:
                self.wait(self._answers())
        except psycopg.Error:
            if self.pgconn.transaction_status == TransactionStatus.INERROR:
                super().rollback()
            raise

    def rollback(self) -> None:
        """Roll back; nothing is left that a later COMMIT would take along."""
        self._last = None
        super().rollback()

    def _answers(self) -> Generator[Any, Any, None]:
        self._sent = False
        results = []
        for _ in ("the last word", "COMMIT", "the end of the pipeline"):
            results += yield from generators.fetch_many(self.pgconn)
        self.pgconn.exit_pipeline_mode()
        for result in results[:-1]:  # what comes behind the first failure was not carried out
            if result.status != ExecStatus.COMMAND_OK:
                error = self._error(result)
                if isinstance(error, errors.InvalidSqlStatementName):
                    self._names = None  # somebody dropped them
                raise error

    def _prepare(self, name: bytes, sql: bytes, types: Sequence[int] = ()) -> None:
        """Prepare a statement once; psycopg's own way to do so takes longer than the server."""
        names = self._names
        if names is None:
            names = self._names = set()
        if name not in names:
            self.pgconn.send_prepare(name, sql, types)
            (result,) = self.wait(generators.execute(self.pgconn))
            if result.status != ExecStatus.COMMAND_OK:
                raise self._error(result)
            names.add(name)

    def _error(self, result: PGresult) -> psycopg.Error:
        return errors.error_from_result(result, encoding=self.info.encoding)

    def _deallocate(self, name: bytes | None) -> Generator[Any, Any, None]:
        """After a ROLLBACK psycopg forgets all that was prepared, by whomever."""
        if name is None:
            self._names = None
        yield from super()._deallocate(name)


def chain(engine: Engine) -> None:
    """Let an engine make such connections."""
    event.listen(engine, "do_connect", _connect)
    event.listen(engine, "set_connection_execution_options", _make_room)


def _connect(_dialect: Any, _entry: Any, arguments: Any, keywords: Any) -> Chained:
    return Chained.connect(*arguments, **keywords)


def _make_room(connection: Connection, options: dict[str, Any]) -> None:
    """An isolation level, say, can be set while there is no transaction, known or not."""
    if _OF_TRANSACTIONS.intersection(options) and not connection.in_transaction():
        unchain(connection)


def unchain(connection: Connection) -> None:
    """End a transaction that nobody wanted; a connection without one is left alone."""
    connection.connection.rollback()
