"""``tasks-app limits`` and ``unblock`` as an operator uses them."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest
from sqlalchemy import Engine

from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.claim import Claims, claim
from tasks_app.pool.runs.settle import settle_one
from tests.cli.shell import Shell
from tests.factory import claimer, ending, pending_task


@pytest.fixture
def run(shell: Shell) -> Shell:
    return shell


def test_limits_are_set_changed_listed_and_removed(run: Shell) -> None:
    done = run("limits", "set", "key", "tenant:*", "--most", "2")
    assert done.stdout == "The limit of key tenant:* is set, from the next claim on.\n"
    run("limits", "set", "key", "tenant:*", "--most", "3")
    run("limits", "set", "name", "mail.send", "--rate", "100/1m", "--burst", "10")
    table = run("limits", "list").stdout
    listed = run.json("limits", "list")

    assert re.search(r"^key +tenant:\* +3 *$", table, re.M)
    assert re.search(r"^name +mail\.send +100/1m +10 *$", table, re.M)
    assert [(each["kind"], each["most"], each["rate"]) for each in listed] == [
        ("key", 3, None),
        ("name", None, 100),
    ]
    removed = run("limits", "remove", "name", "mail.send")
    assert removed.stdout == "The limit of name mail.send is removed.\n"
    gone = run("limits", "drop", "name", "mail.send")
    assert gone.returncode == 1
    assert "There is no limit of name mail.send. Run: tasks-app limits list" in gone.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("queue", "mail"), "limit limits nothing. Allowed: most, rate, or both."),
        (("queue", "a b", "--most", "1"), "text that matches"),
        (
            ("name", "t", "--rate", "often"),
            "limit.rate is not a rate. Allowed: a number and a time, such as 100/1m",
        ),
        (("name", "t", "--rate", "100/1s", "--burst", "9"), "at least 10"),
        (("name", "t", "--most", "1", "--burst", "9"), "without a rate"),
        (("key", "t", "--most", "-1"), "an integer 0"),
    ],
)
def test_what_limits_nothing_or_cannot_be_kept_is_refused(
    run: Shell, arguments: tuple[str, ...], said: str
) -> None:
    done = run("limits", "set", *arguments)

    assert done.returncode == 2
    assert said in done.stderr
    assert run.json("limits", "list") == []


def test_a_failed_task_is_unblocked_once(run: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        task_id = pending_task(connection, order_key="k")
        (task,) = claim(connection, [task_id], claimer(), uuid4(), Claims.ADMITTED)
        settle_one(connection, ending(task, Event.FAIL, failures=1, cause=Cause("E", "m")))

    assert run("unblock", str(task_id)).stdout == "The tasks behind it go on.\n"
    again = run("unblock", str(task_id))
    assert again.returncode == 1
    assert f"Task {task_id} holds no order key." in again.stderr
    assert "There is no task 999." in run("unblock", "999").stderr
