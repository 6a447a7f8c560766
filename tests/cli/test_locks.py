"""``tasks-app locks`` as an operator uses it."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import Engine, text

from tasks_app import locks
from tests.cli.shell import Shell


@pytest.fixture
def run(shell: Shell) -> Shell:
    return shell


def test_it_lists_who_holds_and_who_lost_his_lease(run: Shell, engine: Engine) -> None:
    with locks.hold(engine, exclusive="account:7", shared="rates", who="teller"):
        table = run("locks", "list").stdout
        (listed,) = run.json("locks", "list", "account:7")
        with engine.begin() as connection:
            connection.execute(text("UPDATE task_lock_holder SET lease_until = now()"))
        later = run("locks", "list", "rates").stdout
    assert re.search(r"^account:7 +exclusive +held +teller +\d+\.\d s", table, re.M)
    assert re.search(r"^rates +shared +held +teller", table, re.M)
    assert (listed["resource"], listed["who"]) == ("account:7", "teller")
    assert "beyond its lease for" in later


def test_it_reports_what_is_fought_over(run: Shell, engine: Engine) -> None:
    with locks.hold(engine, exclusive="account:7", who="teller"):
        for _ in range(2):
            with pytest.raises(locks.LockDeniedError):
                locks.hold(engine, shared="account:7").take()
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO task_lock_wait VALUES ('account:7', 'shared', 'timed_out', 'late', 4,"
                " 'account:7 is held by teller, exclusive', 1, now() - interval '3 s', now())"
            )
        )

    table = run("locks", "report").stdout
    (report,) = run.json("locks", "report", "account:7")
    waits = run("locks", "waits").stdout

    assert re.search(r"^account:7 +1 +1 +1 +2 +0 +3\.0 s +3\.0 s +3\.0 s +0 +0", table, re.M)
    assert (report["grants"], report["timed_out"], report["denials"]) == (1, 1, 2)
    assert re.search(
        r"^account:7 +shared +late +4 +3\.0 s +timed_out +1 +account:7 is", waits, re.M
    )


def test_a_lock_is_freed_and_its_holder_is_told(run: Shell, engine: Engine) -> None:
    lock = locks.hold(engine, exclusive="a", who="me").take()
    assert run("locks", "free", "a").stdout == "a was taken from me.\n"
    again = run("locks", "free", "a")
    assert (again.returncode, again.stderr) == (
        1,
        "a is not held. Run: tasks-app locks list\n",
    )
    with pytest.raises(locks.LockLostError):
        lock.release()


def test_a_limit_is_changed_and_given_back_to_code(run: Shell, engine: Engine) -> None:
    assert run("locks", "limit", "license:sap", "1").stdout == "license:sap: at most 1.\n"
    with locks.hold(engine, counted={"license:sap": 3}):
        with pytest.raises(locks.LockDeniedError):
            locks.hold(engine, counted={"license:sap": 3}).take()
        assert run("locks", "limit", "license:sap").stdout == "license:sap: as the code says.\n"
        locks.hold(engine, counted={"license:sap": 3}).take()
