"""``limits``, ``unblock``, ``locks`` and ``groups`` as an operator uses them."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from tasks_app import locks
from tasks_app.domain.creation import NewTask
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.claim import Claims, claim
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.run_records import Note, save_checkpoint
from tasks_app.runtime.api.groups import create_group
from tests.cli.shell import Shell
from tests.factory import claimed_task, claimer, ending, pending_task


def test_limits_are_set_changed_listed_and_removed(shell: Shell) -> None:
    done = shell("limits", "set", "key", "tenant:*", "--most", "2")
    assert done.stdout == "The limit of key tenant:* is set, from the next claim on.\n"
    shell("limits", "set", "key", "tenant:*", "--most", "3")
    shell("limits", "set", "name", "mail.send", "--rate", "100/1m", "--burst", "10")
    table = shell("limits", "list").stdout
    listed = shell.json("limits", "list")

    assert re.search(r"^key +tenant:\* +3 *$", table, re.M)
    assert re.search(r"^name +mail\.send +100/1m +10 *$", table, re.M)
    assert [(each["kind"], each["most"], each["rate"]) for each in listed] == [
        ("key", 3, None),
        ("name", None, 100),
    ]
    removed = shell("limits", "remove", "name", "mail.send")
    assert removed.stdout == "The limit of name mail.send is removed.\n"
    gone = shell("limits", "drop", "name", "mail.send")
    assert gone.returncode == 1
    assert "There is no limit of name mail.send. Run: tasks-app limits list" in gone.stderr


def test_a_failed_task_is_unblocked_once(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        task_id = pending_task(connection, order_key="k")
        (task,) = claim(connection, [task_id], claimer(), uuid4(), Claims.ADMITTED)
        settle_one(connection, ending(task, Event.FAIL, failures=1, cause=Cause("E", "m")))
    assert shell("unblock", str(task_id)).stdout == "The tasks behind it go on.\n"
    again = shell("unblock", str(task_id))
    assert again.returncode == 1
    assert f"Task {task_id} holds no order key." in again.stderr
    assert "There is no task 999." in shell("unblock", "999").stderr


def test_locks_list_who_holds_and_who_lost_his_lease(shell: Shell, engine: Engine) -> None:
    with locks.hold(engine, exclusive="account:7", shared="rates", who="teller"):
        table = shell("locks", "list").stdout
        (listed,) = shell.json("locks", "list", "account:7")
        with engine.begin() as connection:
            connection.execute(text("UPDATE task_lock_holder SET lease_until = now()"))
        later = shell("locks", "list", "rates").stdout
    assert re.search(r"^account:7 +exclusive +held +teller +\d+\.\d s", table, re.M)
    assert re.search(r"^rates +shared +held +teller", table, re.M)
    assert (listed["resource"], listed["who"]) == ("account:7", "teller")
    assert "beyond its lease for" in later


def test_locks_report_what_is_fought_over(shell: Shell, engine: Engine) -> None:
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

    table = shell("locks", "report").stdout
    (report,) = shell.json("locks", "report", "account:7")
    waits = shell("locks", "waits").stdout

    assert re.search(r"^account:7 +1 +1 +1 +2 +0 +3\.0 s +3\.0 s +3\.0 s +0 +0", table, re.M)
    assert (report["grants"], report["timed_out"], report["denials"]) == (1, 1, 2)
    assert re.search(
        r"^account:7 +shared +late +4 +3\.0 s +timed_out +1 +account:7 is", waits, re.M
    )


def test_a_lock_is_freed_and_its_holder_is_told(shell: Shell, engine: Engine) -> None:
    lock = locks.hold(engine, exclusive="a", who="me").take()
    assert shell("locks", "free", "a").stdout == "a was taken from me.\n"
    again = shell("locks", "free", "a")
    assert (again.returncode, again.stderr) == (1, "a is not held. Run: tasks-app locks list\n")
    with pytest.raises(locks.LockLostError):
        lock.release()


def test_a_limit_of_a_lock_is_changed_and_given_back_to_code(shell: Shell, engine: Engine) -> None:
    assert shell("locks", "limit", "license:sap", "1").stdout == "license:sap: at most 1.\n"
    with locks.hold(engine, counted={"license:sap": 3}):
        with pytest.raises(locks.LockDeniedError):
            locks.hold(engine, counted={"license:sap": 3}).take()
        assert shell("locks", "limit", "license:sap").stdout == "license:sap: as the code says.\n"
        locks.hold(engine, counted={"license:sap": 3}).take()


@pytest.fixture
def group(engine: Engine):
    with engine.begin() as connection:
        made = create_group(connection, [NewTask("t") for _ in range(3)], then=NewTask("then"))
        task = claimed_task(connection, made.task_ids[1])
        settle_one(connection, ending(task, Event.FAIL, cause=Cause("ValueError", "no")))
    return made


def test_groups_show_how_far_a_group_is(shell: Shell, group) -> None:
    listed = shell("groups", "list").stdout
    shown = shell("groups", "show", str(group.id)).stdout
    as_json = shell.json("groups", "show", str(group.id))
    assert re.search(rf"^{group.id} +goes on +3 +0 +1 +2 ", listed, re.M)
    assert re.search(r"^members +0 succeeded, 1 failed of 3", shown, re.M)
    assert re.search(r"^now +1 FAILED, 2 PENDING", shown, re.M)
    assert re.search(rf"^{group.task_ids[1]} +FAILED +ValueError: no", shown, re.M)
    assert (as_json["group"]["failed"], as_json["states"]["PENDING"]) == (1, 2)


def test_a_task_says_which_group_waits_for_it_and_which_calls_it(shell: Shell, group) -> None:
    member = shell("show", str(group.task_ids[0])).stdout
    callback = shell("show", str(group.callback_id))
    explained = shell("explain", str(group.callback_id))
    as_json = shell.json("show", str(group.task_ids[0]))
    assert re.search(rf"^member_of +{group.id}, 2 of 3 have not ended \(goes on\)", member, re.M)
    assert (callback.returncode, explained.returncode) == (1, 0)
    assert f"it is the callback of group {group.id}. Run: tasks-app groups show" in callback.stderr
    assert "It does not exist yet: it waits as the callback of group" in explained.stdout
    assert (as_json["task"]["group_id"], as_json["member_of"]["failed"]) == (group.id, 1)


def test_what_is_left_of_a_group_is_cancelled(shell: Shell, group) -> None:
    assert shell("groups", "cancel", str(group.id)).stdout == "2 cancelled, 0 asked to stop.\n"
    assert shell.json("groups", "list", "--open") == []
    assert shell.json("groups", "list")[0]["outcome"] == "FAILED"


def test_the_members_of_a_group_are_listed(shell: Shell, group) -> None:
    listed = shell("list", "--group", str(group.id)).stdout.splitlines()
    failed = shell.json("list", "--group", str(group.id), "--state", "FAILED")
    older = shell.json("list", "--group", str(group.id), "--before", str(group.task_ids[2]))
    shown = shell("groups", "show", str(group.id)).stdout
    assert [line.split()[0] for line in listed[1:]] == [str(i) for i in group.task_ids[::-1]]
    assert [task["id"] for task in failed] == [group.task_ids[1]]
    assert [task["id"] for task in older] == [group.task_ids[1], group.task_ids[0]]
    assert shown.endswith(f"All members: tasks-app list --group {group.id}\n")


def test_show_says_why_the_last_attempt_was_the_last(shell: Shell, group) -> None:
    failed = str(group.task_ids[1])
    assert re.search(
        r"^not tried again +its handler has no retry", shell("show", failed).stdout, re.M
    )
    assert shell.json("show", failed)["why_last"].startswith(
        "its handler has no retry for ValueError"
    )
    assert shell.json("show", str(group.task_ids[0]))["why_last"] is None


def test_what_a_long_run_has_kept_is_shown_with_its_task(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        task = claimed_task(connection)
        save_checkpoint(connection, task.fence, Note('{"month": 3}', True, 0.25, "March", "a", "1"))
    shown = shell("show", str(task.task_id)).stdout
    as_json = shell.json("show", str(task.task_id))["progress"]
    assert re.search(r"^progress +25% March$", shown, re.M)
    assert re.search(r'^checkpoint +{"month": 3}$', shown, re.M)
    assert (as_json["checkpoint"], as_json["fraction"]) == ({"month": 3}, 0.25)
    assert re.search(r"^steps +a$", shown, re.M)
    assert list(shell.json("show", str(task.task_id))["steps"]) == ["a"]
