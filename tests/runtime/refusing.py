"""A layer below SQLAlchemy that refuses chosen statements with a SQLSTATE of PostgreSQL's.

Errors that end a session close the connection, too, as the server does.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tasks_app.pool.runs.settle_success import success_statement
from tasks_app.runtime.handler_db.ends import EndsRuns, RunEnd, Steps
from tests.clock import until
from tests.runtime.bench import Bench
from tests.runtime.labour import Labour

FATAL = ("08", "57P", "25P03", "25P04")
STATEMENTS = {
    "claim": r"^(?!.*generate_series).*policies",
    "claim next": r"generate_series\(0, 9\)",
    "settle successes": r"AS f\(id, attempt, token, result, run_ms\)",
    "settle others": r"AS f\(id, attempt, token, target",
    "succeed": r"WITH gone AS \(\s*DELETE FROM task_pending",
    "heartbeat": r"INSERT INTO task_worker",
    "renew": r"UPDATE task_pending p SET lease_until",
    "release": r"AS interval\) AS back_at, p\.failures",
    "rescue": r"p\.lease_until < ",
    "scan": r"AS priorities",
    "hold": r"INSERT INTO task_lease",
    "sweep": r"WHEN p.enabled THEN 'expired'",
    "pace": r"INSERT INTO task_pace",
}
"""What each of our statements is recognised by."""
WITH_BROKER = tuple(name for name in STATEMENTS if name != "claim next")
FOR_A_WHILE_S = 4.0
MOST_PER_S = 2.0


class Refusals:
    """What is refused now, and what has been."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._wanted: tuple[re.Pattern[str], ...] = ()
        self._code = ""
        self._left = 0.0
        self.at: list[float] = []
        """When each was refused."""
        self.kinds: set[str] = set()

    def refuse(self, code: str, *names: str, times: float = float("inf")) -> None:
        """Refuse these statements from now on, or so often."""
        with self._mutex:
            self._wanted = tuple(re.compile(STATEMENTS[name], re.DOTALL) for name in names)
            self._code, self._left = code, times
            self.at.clear()
            self.kinds.clear()

    def end(self) -> None:
        with self._mutex:
            self._wanted = ()

    def judge(self, connection: Any, query: object) -> None:
        sql = query.decode() if isinstance(query, bytes) else str(query)
        with self._mutex:
            if self._left <= 0:
                return
            found = next((wanted for wanted in self._wanted if wanted.search(sql)), None)
            if found is None:
                return
            self.kinds.add(found.pattern)
            self._left -= 1
            self.at.append(time.monotonic())
        if self._code.startswith(FATAL):
            connection.pgconn.finish()
        raise errors.lookup(self._code)(f"refused by the test: {self._code}")


@contextmanager
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Refusals]:
    """Lay the layer below every psycopg connection of this process."""
    faults = Refusals()
    execute, end, end_each = psycopg.Cursor.execute, EndsRuns.end, EndsRuns.end_each

    def judged(cursor: Any, query: Any, *args: Any, **options: Any) -> Any:
        faults.judge(cursor.connection, query)
        return execute(cursor, query, *args, **options)

    def judged_end(connection: Any, ending: RunEnd) -> Steps[None]:
        faults.judge(
            connection, success_statement(*ending.settlements).sql
        )  # sent prepared, past cursors
        yield from end(connection, ending)

    def judged_ends(connection: Any, ends: Sequence[RunEnd]) -> Steps[list[Exception | None]]:
        for each in ends:
            faults.judge(connection, success_statement(*each.settlements).sql)
        return (yield from end_each(connection, ends))

    monkeypatch.setattr(psycopg.Cursor, "execute", judged)
    monkeypatch.setattr(EndsRuns, "end_each", judged_ends)
    monkeypatch.setattr(EndsRuns, "end", judged_end)
    yield faults
    faults.end()


def get_over(bench: Bench, faults: Refusals, code: str, name: str, times: int = 2) -> None:
    """Refuse a statement so often: all is done in the end, and nothing twice."""
    labour = Labour(bench)
    labour.tasks()
    faults.refuse(code, name, times=times)
    labour.begin(with_broker=name != "claim next")
    labour.over()
    labour.check()
    assert faults.at, f"{name} was never asked for"


def endure(bench: Bench, faults: Refusals, code: str, *names: str) -> None:
    """Refuse statements for a while: this process asks seldom, then all is as above.

    A settle in the handler's own transaction is not repeated: its task is, by its policy.
    """
    labour = Labour(bench)
    labour.tasks()
    faults.refuse(code, *names)
    labour.begin(with_broker="claim next" not in names)
    until(lambda: faults.at, 60, f"the first of {names}")
    began = time.monotonic()
    until(lambda: time.monotonic() - began > FOR_A_WHILE_S, FOR_A_WHILE_S + 1)
    faults.end()
    asked = (len(faults.at) - len(faults.kinds)) / FOR_A_WHILE_S  # not the first time of each
    labour.over()
    labour.check()
    assert asked <= MOST_PER_S or names == ("succeed",), [at - began for at in faults.at]
