"""What becomes of work while the database refuses it, statement by statement and code by code.

A real child with its standby, or a worker without a broker, on PostgreSQL. Below SQLAlchemy a layer
refuses; when it stops, everything ends as if nothing had been.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import DBAPIError

from tasks_app.runtime.db.errors import Remedy, is_lock_limit, is_stale_plan, remedy_for
from tests.runtime.bench import Bench
from tests.runtime.refusing import STATEMENTS, WITH_BROKER, Refusals, endure, get_over

KINDS = ("40P01", "42501", "53100", "57P01")
"""Of codes: what passes by itself, what an operator mends, a database that is unavailable to all
while the session lives, and one whose session is over."""


def test_errors_of_other_drivers_say_nothing_of_our_server() -> None:
    """asyncpg's have a SQLSTATE, and nothing that tells which function raised them."""

    class LockNotAvailableError(Exception):
        sqlstate = "55P03"

    assert not is_lock_limit(LockNotAvailableError())
    assert not is_stale_plan(LockNotAvailableError())


@pytest.mark.test_all
@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("code", ["40P01", "57P01"])
def test_twice(bench: Bench, refusals: Refusals, code: str, name: str) -> None:
    get_over(bench, refusals, code, name)


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("40P01", "settle successes"),
        ("42501", "claim"),
        ("53100", "heartbeat"),
        ("57P01", "claim next"),
    ],
)
def test_for_a_while(bench: Bench, refusals: Refusals, code: str, name: str) -> None:
    endure(bench, refusals, code, name)


@pytest.mark.test_all
@pytest.mark.parametrize("code", KINDS)
def test_all_are_refused_for_a_while(bench: Bench, refusals: Refusals, code: str) -> None:
    endure(bench, refusals, code, *WITH_BROKER)


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
