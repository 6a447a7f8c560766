"""Cursors of handlers: each statement is checked before it is sent, most by their results, too."""

from __future__ import annotations

from typing import Any, Self

import psycopg
from psycopg.pq.abc import PGresult

from tasks_app.runtime.handler_db.driver_internals import IS_PSYCOPG_3_2


class HandlerCursor(psycopg.Cursor[Any]):
    """Checks the statements of handlers."""

    if IS_PSYCOPG_3_2:  # it cannot go back

        def set_result(self, index: int) -> Self:
            self._select_current_result(index)
            return self

    def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
        """Execute a statement that does not end the transaction."""
        connection: Any = self.connection
        connection.judge(query)
        try:
            done = super().execute(query, *arguments, **options)
        except psycopg.Error as error:
            connection.heed((), error)
            raise
        if len(results := _results(self)) > 1:
            self.set_result(0)
        if connection.heed(results):
            with connection.lock:
                connection.wait(connection.lock_if_snapshot())
        return done

    def executemany(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        self.connection.judge(query)
        return super().executemany(query, *arguments, **options)

    def stream(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        self.connection.judge(query)
        return super().stream(query, *arguments, **options)

    def copy(self: Any, statement: Any, *arguments: Any, **options: Any) -> Any:
        self.connection.judge(statement)
        return super().copy(statement, *arguments, **options)


def _results(cursor: Any) -> list[PGresult]:
    """Return the results of a string of statements; of several, the cursor ends at the last."""
    results = [] if cursor.pgresult is None else [cursor.pgresult]
    while cursor.nextset():
        results.append(cursor.pgresult)
    return results
