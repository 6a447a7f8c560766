"""Connections on which the end of one short run takes a single round trip, and begins the next.

The last statement and the COMMIT travel together. Their answer need not be waited for: it comes
with that to the next run's first statement, which goes out behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import errors, generators
from psycopg._preparing import Prepare
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from sqlalchemy import Connection, Engine, event

from tasks_app.pool.succeed import LastWord

T = TypeVar("T")
Steps: TypeAlias = Generator[Any, Any, T]
"""What psycopg carries out between its waits for the server."""

_CHAIN = b"COMMIT AND CHAIN"
_OF_TRANSACTIONS = frozenset({"isolation_level", "postgresql_readonly", "postgresql_deferrable"})
_UNANSWERED = "The COMMIT was not answered."


class Chained(psycopg.Connection[Any]):
    """Of handlers."""

    _last: tuple[LastWord, bool, bool] | None = None
    """What the next COMMIT takes along, whether it begins a transaction, and is left alone."""
    is_unheard = False
    """Whether a COMMIT was sent whose answer has not been read."""
    _refusal: psycopg.Error | None = None
    """Why the COMMIT that was left alone failed; its run has not asked yet."""
    _carries = False
    """Whether a statement is under way that reads that answer, too."""
    _names: set[bytes] | None = None
    """Those of the statements that are prepared here."""

    def can_end_with(self) -> bool:
        """Whether :meth:`end_with` may be called: in a sound transaction, where names last."""
        return (
            self.pgconn.transaction_status == TransactionStatus.INTRANS
            and self.pgconn.pipeline_status == PipelineStatus.OFF
            and self.prepare_threshold is not None  # none: a pooler deals out its servers
            and self.pgconn.parameter_status(b"client_encoding") == b"UTF8"  # as a last word's
        )

    def end_with(self, last: LastWord, *, chain: bool, leave: bool = False) -> None:
        """Let the next :meth:`commit` say this first, and fail with it.

        With ``chain`` it begins another transaction, of which nobody knows: what comes next finds
        one that has done nothing, or begins one. With ``leave`` it does not wait for the answer,
        which :meth:`hear` gives.
        """
        self._last = last, chain, leave

    def commit(self) -> None:
        """Commit, with what was to go along; one that fails leaves no transaction."""
        if self._last is None:
            super().commit()
            return
        leaves = self._last[2]
        try:
            self.send()
        except psycopg.Error:
            if self.pgconn.transaction_status == TransactionStatus.INERROR:
                super().rollback()
            raise
        if not leaves:
            self.hear()

    def send(self) -> None:
        """Send the COMMIT and what it takes along."""
        assert self._last is not None  # noqa: S101  it ends with something
        last, chain, _ = self._last
        self._prepare(last.name, last.sql, last.types)
        if chain:
            self._prepare(_CHAIN, _CHAIN)
        self._last = None
        pgconn = self.pgconn
        pgconn.enter_pipeline_mode()
        self.is_unheard = True
        pgconn.send_query_prepared(last.name, last.values)
        if chain:
            pgconn.send_query_prepared(_CHAIN, ())
        else:
            pgconn.send_query_params(b"COMMIT", None)
        if pgconn.flush():
            self._carry_out(generators.send(pgconn))

    def hear(self) -> None:
        """Wait for the answer to the COMMIT, unless it came already, and raise if it failed."""
        self.leave_pipeline()
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    def leave_pipeline(self) -> None:
        """Read the answer that is still to come, if one is, and keep it for :meth:`hear`."""
        if self.is_unheard:
            self._carry_out(self.answers())

    def rollback(self) -> None:
        """Roll back; nothing is left that a later COMMIT would take along."""
        self._last = None
        super().rollback()

    def wait(self, gen: Steps[T], *arguments: Any, **options: Any) -> T:
        """Carry out what anybody wants; what cannot go behind a COMMIT waits until it is heard."""
        if self.is_unheard and not self._carries:
            super().wait(self.answers())
        return super().wait(gen, *arguments, **options)

    def _carry_out(self, steps: Steps[T]) -> T:
        with self.lock:
            return super().wait(steps)

    def answers(self, send: Callable[[], None] | None = None) -> Steps[list[PGresult] | None]:
        """Read the answer to the COMMIT and keep it for :meth:`hear`.

        A statement that ``send`` sends goes out before that, and its results are returned. None:
        where a COMMIT fails the server skips what comes behind it, which has to be said again.
        """
        self.is_unheard = False
        self._refusal = psycopg.OperationalError(_UNANSWERED)
        pgconn, results = self.pgconn, None
        try:
            if send is not None:
                send()
            pgconn.pipeline_sync()
            yield from generators.send(pgconn)
            said = yield from generators.fetch_many(pgconn)
            committed = yield from generators.fetch_many(pgconn)
            if send is not None:
                results = yield from generators.fetch_many(pgconn)
            yield from generators.fetch_many(pgconn)  # the end of the pipeline
            self._refusal = self._refused(said) or self._refused(committed)
            if self._refusal is not None:
                results = None
            pgconn.exit_pipeline_mode()
            if results is None and pgconn.transaction_status == TransactionStatus.INERROR:
                yield from self._exec_command(b"ROLLBACK")
        except BaseException:
            pgconn.finish()  # nobody knows what is still to come
            raise
        return results

    def _refused(self, results: Sequence[PGresult]) -> psycopg.Error | None:
        if not results:
            return psycopg.OperationalError(_UNANSWERED)
        if results[0].status == ExecStatus.COMMAND_OK:
            return None
        error = self._error(results[0])
        if isinstance(error, errors.InvalidSqlStatementName):
            self._names = None  # somebody dropped them
        return error

    def _prepare(self, name: bytes, sql: bytes, types: Sequence[int] = ()) -> None:
        """Prepare a statement once; psycopg's own way to do so takes longer than the server."""
        names = self._names
        if names is None:
            names = self._names = set()
        if name not in names:
            self.pgconn.send_prepare(name, sql, types)
            (result,) = self._carry_out(generators.execute(self.pgconn))
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


class _Cursor(psycopg.Cursor[Any]):
    """Of handlers: what it says first goes out behind a COMMIT whose answer was not heard."""

    _conn: Chained

    def execute(self, *statement: Any, **options: Any) -> Any:
        """Execute a statement."""
        connection = self._conn
        connection._carries = connection.is_unheard  # noqa: SLF001  they are one thing
        try:
            return super().execute(*statement, **options)
        finally:
            connection._carries = False  # noqa: SLF001

    def stream(self, *statement: Any, **options: Any) -> Iterator[Any]:
        """Execute a statement and yield its rows as they come; it refuses pipelines."""
        self._conn.leave_pipeline()
        return super().stream(*statement, **options)

    def _maybe_prepare_gen(self, pgq: Any, **options: Any) -> Steps[None]:
        connection = self._conn
        if connection.is_unheard:
            known, name = self._get_prepared(pgq, options.get("prepare"))
            if known is Prepare.YES:
                results = yield from connection.answers(
                    lambda: self._send_query_prepared(name, pgq, binary=options.get("binary"))
                )
                if results is not None:
                    connection._prepared.maybe_add_to_cache(pgq, known, name)  # noqa: SLF001
                    self._check_results(results)
                    self._set_results(results)
                    return
            else:
                yield from connection.answers()
            yield from connection._start_query()  # noqa: SLF001
        yield from super()._maybe_prepare_gen(pgq, **options)


class _NamedCursor(psycopg.ServerCursor[Any]):
    """Of handlers, in the server; psycopg has none in a pipeline."""

    _conn: Chained

    def execute(self, *statement: Any, **options: Any) -> Any:
        """Open the cursor."""
        self._conn.leave_pipeline()
        return super().execute(*statement, **options)


def chain(engine: Engine) -> None:
    """Let an engine make such connections."""
    event.listen(engine, "do_connect", _connect)
    event.listen(engine, "set_connection_execution_options", _make_room)


def _connect(_dialect: Any, _entry: Any, arguments: Any, keywords: Any) -> Chained:
    connection = Chained.connect(*arguments, cursor_factory=_Cursor, **keywords)
    connection.server_cursor_factory = _NamedCursor
    return connection


def _make_room(connection: Connection, options: dict[str, Any]) -> None:
    """An isolation level, say, can be set while there is no transaction, known or not."""
    if _OF_TRANSACTIONS.intersection(options) and not connection.in_transaction():
        unchain(connection)


def unchain(connection: Connection) -> None:
    """End a transaction that nobody wanted; a connection without one is left alone."""
    connection.connection.rollback()
