"""``tasks-app groups`` as an operator uses it."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import Engine

from tasks_app.domain.creation import NewTask
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.run_records import Note, save_checkpoint
from tasks_app.runtime.api.groups import create_group
from tests.cli.shell import Shell
from tests.factory import claimed_task, ending


@pytest.fixture
def run(shell: Shell) -> Shell:
    return shell


@pytest.fixture
def group(engine: Engine):
    with engine.begin() as connection:
        made = create_group(connection, [NewTask("t") for _ in range(3)], then=NewTask("then"))
        task = claimed_task(connection, made.task_ids[1])
        settle_one(connection, ending(task, Event.FAIL, cause=Cause("ValueError", "no")))
    return made


def test_it_shows_how_far_a_group_is(run: Shell, group) -> None:
    listed = run("groups", "list").stdout
    shown = run("groups", "show", str(group.id)).stdout
    as_json = run.json("groups", "show", str(group.id))
    assert re.search(rf"^{group.id} +goes on +3 +0 +1 +2 ", listed, re.M)
    assert re.search(r"^members +0 succeeded, 1 failed of 3", shown, re.M)
    assert re.search(r"^now +1 FAILED, 2 PENDING", shown, re.M)
    assert re.search(rf"^{group.task_ids[1]} +FAILED +ValueError: no", shown, re.M)
    assert (as_json["group"]["failed"], as_json["states"]["PENDING"]) == (1, 2)


def test_a_task_says_which_group_waits_for_it_and_which_calls_it(run: Shell, group) -> None:
    member = run("show", str(group.task_ids[0])).stdout
    callback = run("show", str(group.callback_id))
    explained = run("explain", str(group.callback_id))
    as_json = run.json("show", str(group.task_ids[0]))
    assert re.search(rf"^member_of +{group.id}, 2 of 3 have not ended \(goes on\)", member, re.M)
    assert (callback.returncode, explained.returncode) == (1, 0)
    assert f"it is the callback of group {group.id}. Run: tasks-app groups show" in callback.stderr
    assert "It does not exist yet: it waits as the callback of group" in explained.stdout
    assert (as_json["task"]["group_id"], as_json["member_of"]["failed"]) == (group.id, 1)


def test_it_cancels_what_is_left(run: Shell, group) -> None:
    assert run("groups", "cancel", str(group.id)).stdout == "2 cancelled, 0 told to stop.\n"
    assert run.json("groups", "list", "--open") == []
    assert run.json("groups", "list")[0]["outcome"] == "FAILED"


def test_one_that_is_unknown(run: Shell, engine: Engine) -> None:
    answer = run("groups", "show", "7")
    assert answer.returncode == 1
    assert "There is no group 7" in answer.stderr


def test_the_members_of_a_group_are_listed(run: Shell, group) -> None:
    listed = run("list", "--group", str(group.id)).stdout.splitlines()
    failed = run.json("list", "--group", str(group.id), "--state", "FAILED")
    older = run.json("list", "--group", str(group.id), "--before", str(group.task_ids[2]))
    shown = run("groups", "show", str(group.id)).stdout
    assert [line.split()[0] for line in listed[1:]] == [str(i) for i in group.task_ids[::-1]]
    assert [task["id"] for task in failed] == [group.task_ids[1]]
    assert [task["id"] for task in older] == [group.task_ids[1], group.task_ids[0]]
    assert shown.endswith(f"All members: tasks-app list --group {group.id}\n")


def test_show_says_why_the_last_attempt_was_the_last(run: Shell, group) -> None:
    failed = str(group.task_ids[1])
    assert re.search(
        r"^not tried again +its handler has no retry", run("show", failed).stdout, re.M
    )
    assert run.json("show", failed)["why_last"].startswith(
        "its handler has no retry for ValueError"
    )
    assert run.json("show", str(group.task_ids[0]))["why_last"] is None


def test_what_a_long_run_has_kept_is_shown_with_its_task(run: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        task = claimed_task(connection)
        save_checkpoint(connection, task.fence, Note('{"month": 3}', True, 0.25, "March"))
    shown = run("show", str(task.task_id)).stdout
    as_json = run.json("show", str(task.task_id))["progress"]
    assert re.search(r"^progress +25% March$", shown, re.M)
    assert re.search(r'^checkpoint +{"month": 3}$', shown, re.M)
    assert (as_json["checkpoint"], as_json["fraction"]) == ({"month": 3}, 0.25)
