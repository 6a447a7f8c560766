"""What becomes of work while the database refuses it, statement by statement and code by code.

A real child with its standby, or a worker without a broker, on PostgreSQL. Below SQLAlchemy a layer
refuses; when it stops, everything ends as if nothing had been. All cells: `make test-all`.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import DBAPIError

from tasks_app.runtime.db.errors import Remedy, remedy_for
from tests.runtime.bench import Bench
from tests.runtime.refusing import WITH_BROKER, Refusals, endure, get_over


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("40P01", "settle successes"),
        ("40001", "succeed"),
        ("08006", "claim"),
        ("42501", "enter"),
        ("55P03", "claim next"),
    ],
)
def test_a_statement_that_is_refused_once(
    bench: Bench, refusals: Refusals, code: str, name: str
) -> None:
    get_over(bench, refusals, code, name, times=1)


@pytest.mark.test_all
def test_all_are_refused_for_a_while(bench: Bench, refusals: Refusals) -> None:
    endure(bench, refusals, "42P01", *WITH_BROKER)


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        (errors.DeadlockDetected, Remedy.REPEAT),
        (errors.InsufficientPrivilege, Remedy.REPEAT),
        (errors.InternalError_, Remedy.REPEAT),
        (errors.ReadOnlySqlTransaction, Remedy.SPARE),
        (errors.DiskFull, Remedy.SPARE),
        (errors.IdleInTransactionSessionTimeout, Remedy.SPARE),
        (errors.AdminShutdown, Remedy.SPARE),
        (psycopg.OperationalError, Remedy.SPARE),
        (psycopg.ProgrammingError, Remedy.REPEAT),
        (errors.UntranslatableCharacter, Remedy.REPLACE),
        (errors.CheckViolation, Remedy.REPLACE),
        (errors.ProgramLimitExceeded, Remedy.REPLACE),
    ],
)
def test_the_remedy_is_declared_by_sqlstate(state: type[psycopg.Error], remedy: Remedy) -> None:
    error = DBAPIError.instance("", None, state(""), psycopg.Error)

    assert remedy_for(error) is remedy
