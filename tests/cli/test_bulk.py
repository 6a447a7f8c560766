"""Many tasks and single ones: dry runs, stages, edits, reasons, the audit and the shell."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tasks_app.domain.operations import LONGEST_WHY
from tasks_app.domain.tasks.error_text import fingerprint_of
from tasks_app.domain.tasks.run import Cause
from tests.cli.shell import Shell, token_of
from tests.factory import pending_task
from tests.runtime.api.acts import failed_task, make, pools


def test_a_dry_run_then_the_first_then_the_rest(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        ids = [failed_task(connection, "shop.Away", "nobody there") for _ in range(5)]
        failed_task(connection, "Other", "m")

    dry = shell("requeue", "--name", "t", "--error-kind", "Away", "--dry-run")
    staged = shell("requeue", "--name", "t", "--error-kind", "Away", "--first", "2")
    token = token_of(staged.stdout)
    left = shell("rest", token, "--dry-run")
    rest = shell("rest", token)
    again = shell("rest", token)

    assert re.search(r"^t +FAILED +5 *$", dry.stdout, re.M)
    assert "5 tasks are selected. Nothing was changed." in dry.stdout
    assert f"2 requeued\nids: {ids[0]} {ids[1]}\n" in staged.stdout
    assert f"To go on: tasks-app rest {token}" in staged.stdout
    assert "3 tasks are selected" in left.stdout
    assert rest.stdout.startswith("3 requeued\n")
    assert again.stdout == "nothing to do\n"
    assert {done.returncode for done in (dry, staged, left, rest, again)} == {0}
    assert pools(engine, ids) == {"pending PENDING": 5}


def test_the_audit_lists_and_shows_how_it_went(shell: Shell, engine: Engine) -> None:
    make(engine, 3)
    staged = shell("cancel", "--name", "t", "--first", "2")
    shell("pause", "mail", "--reason", "why")

    listed = shell("audit").stdout
    shown = shell("audit", token_of(staged.stdout)).stdout
    as_json = shell.json("audit", token_of(staged.stdout))
    missing = shell("audit", "1000000000")

    assert re.search(r"pause .* queue=mail reason=why", listed)
    assert re.search(r"^what +name=t pool=pending$", shown, re.M)
    assert re.search(r"^by +\S+@\S+ as \S+$", shown, re.M)
    assert re.search(r"^now +2 CANCELLED$", shown, re.M)
    assert re.search(r"^to go on +tasks-app rest \d+$", shown, re.M)
    assert as_json["states"] == {"CANCELLED": 2}
    assert (missing.returncode, missing.stdout) == (1, "")


def test_an_edit_that_the_model_refuses_names_ids_and_no_payload(
    shell: Shell, engine: Engine
) -> None:
    (task_id,) = make(engine, 1, name="cli.order", payload={"order_id": 1})

    refused = shell("edit", "--name", "cli.order", "--set", 'order_id="secret"')
    edited = shell("edit", str(task_id), "--set", "order_id=2")
    listed = shell("audit", token_of(refused.stdout), "--json")

    assert refused.returncode == 1
    told = f"1 left as it is, its handler refuses payload.order_id: {task_id}\n"
    assert refused.stderr == told
    assert (edited.returncode, edited.stdout.splitlines()[1:]) == (
        0,
        ["1 edited", f"ids: {task_id}"],
    )
    gone = shell("edit", str(task_id), "1000000000", "--set", "order_id=2", "--queue", "other")
    assert gone.returncode == 1
    assert gone.stderr == (
        "2 left as they are, not found, already like this, or with a state or options that "
        "do not fit: "
        f"{task_id} 1000000000\n"
    )
    assert shell.json("show", str(task_id))["task"]["payload"] == {"order_id": 2}
    assert "secret" not in refused.stdout + refused.stderr + listed.stdout


def test_ids_alone_are_answered_one_by_one(shell: Shell, engine: Engine) -> None:
    (task_id,) = make(engine, 1)
    done = shell("cancel", str(task_id), "1000000000")
    assert (done.returncode, done.stdout) == (1, f"{task_id}  cancelled\n1000000000  not found\n")


def test_a_filter_and_ids_must_both_be_true(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        a, b = pending_task(connection, "a"), pending_task(connection, "b")
    done = shell("cancel", str(a), str(b), "--name", "a")
    assert f"ids: {a}\n" in done.stdout


def test_a_queue_is_shared_listed_and_not_shared(shell: Shell) -> None:
    shared = shell("fair", "mail", "--weight", "tenant:gold=3", "--weight", "b=0.5")
    listed = shell("fair").stdout
    off, again = shell("fair", "mail", "--off"), shell("fair", "mail", "--off")
    refused = shell("fair", "mail", "--weight", "a=0"), shell("fair", "mail", "--weight", "a")
    assert shared.stdout == "shared by fair_key\n"
    assert re.search(r"^mail +b=0.5 tenant:gold=3 *$", listed, re.M)
    assert (off.stdout, again.stdout) == ("by priority and age\n", "was not shared\n")
    assert [done.returncode for done in refused] == [2, 2]
    assert re.search(r" share .*\s+queue=mail weights", shell("audit").stdout)


WHY = "the bank is back"


def told(shell: Shell, task_id: int, what: str) -> list[dict[str, Any]]:
    return [each for each in shell.json("show", str(task_id), "--trail") if each["what"] == what]


def subject(engine: Engine, action: str) -> int:
    with engine.begin() as connection:
        if action == "requeue":
            return failed_task(connection)
        return int(pending_task(connection, "cli.echo"))


VERBS = [("cancel",), ("requeue",), ("edit", "--set", "a=1"), ("hold",)]


@pytest.mark.parametrize("level", ["off", "all"])
@pytest.mark.parametrize("selected", [False, True])
@pytest.mark.parametrize("words", VERBS)
def test_the_reason_is_in_the_audit_and_in_the_trail(
    shell: Shell,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    selected: bool,
    level: str,
) -> None:
    monkeypatch.setenv("TASKS_APP_TRANSITIONS", level)
    task_id = subject(engine, words[0])

    name = "t" if words[0] == "requeue" else "cli.echo"
    which = ("--name", name) if selected else (str(task_id),)
    done = shell(*words, *which, "--why", WHY)

    assert done.returncode == 0, done.stderr
    assert f"why={WHY}" in shell("audit").stdout
    (moment,) = told(shell, task_id, words[0])
    assert moment["message"] == WHY
    assert "@" in moment["by"]
    shown = shell("show", str(task_id), "--trail").stdout
    assert re.search(rf"{words[0]} .*@.* {WHY}", shown)
    with engine.connect() as connection:
        lines = connection.execute(
            text("SELECT who, why FROM task_transition WHERE event = :it"), {"it": words[0]}
        ).all()
    assert [why for _, why in lines] == ([WHY] if level == "all" else [])


def test_the_audit_names_the_id_beside_the_reason(shell: Shell, engine: Engine) -> None:
    (task_id,) = make(engine, 1)
    shell("cancel", str(task_id), "--why", WHY)
    assert f"ids=[{task_id}] why={WHY}" in shell("audit").stdout


def test_a_long_reason_is_cut_and_one_that_cannot_be_stored_is_refused(
    shell: Shell, engine: Engine
) -> None:
    one, other = make(engine, 2)
    assert shell("cancel", str(one), "--why", "x" * 600).returncode == 0
    (moment,) = told(shell, one, "cancel")
    assert moment["message"] == "x" * LONGEST_WHY
    refused = shell("cancel", str(other), "--why", "\udcff")
    assert refused.returncode == 2
    assert "An argument is not UTF-8." in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_trail_fits_a_terminal_and_is_whole_in_a_pipe(
    shell: Shell, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task_id,) = make(engine, 1)
    why = "the bank asks, " * 20
    shell("hold", str(task_id), "--why", why)
    shell("run-now", str(task_id))
    whole = shell("show", str(task_id), "--trail").stdout
    monkeypatch.setenv("COLUMNS", "80")
    narrow = shell("show", str(task_id), "--trail").stdout
    assert why.strip() in whole
    assert max(map(len, narrow.splitlines())) <= 80
    assert re.search(r"Z  hold .*\n    the bank asks, .* …\n", narrow)


def test_tasks_are_listed_by_their_sub_status(shell: Shell, engine: Engine) -> None:
    waits, _ = make(engine, 2)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE task_pending SET sub_status = 'waiting for bank' WHERE id = :id"),
            {"id": waits},
        )
    assert [task["id"] for task in shell.json("list", "--sub-status", "waiting for bank")] == [
        waits
    ]
    assert "waiting for bank" in shell("list").stdout
    assert re.search(r"^sub_status +waiting for bank$", shell("show", str(waits)).stdout, re.M)
    assert re.search(r"^updated_at +\d{4}-", shell("show", str(waits)).stdout, re.M)


HEX = fingerprint_of(Cause("shop.Away", "nobody at 7")).hex()


@pytest.fixture
def ids(engine: Engine) -> list[int]:
    with engine.begin() as connection:
        failed_task(connection, "Other", "m")
        return [failed_task(connection, "shop.Away", f"nobody at {n}") for n in range(4)]


def test_causes_are_listed_at_80_columns(
    shell: Shell, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = shell("errors")
    groups = shell.json("errors")

    assert told.returncode == 0
    head, first, remark, *_ = told.stdout.splitlines()
    assert head.split() == ["fingerprint", "tasks", "first", "last", "names", "queues"]
    assert first.split()[:2] == [HEX, "4"]
    assert remark.strip() == "shop.Away: nobody at 3"
    assert max(map(len, told.stdout.splitlines())) <= 80
    assert (groups[0]["fingerprint"], groups[0]["number"]) == (HEX, 4)
    assert sum(groups[0]["hours"]) == 4
    assert shell("errors", "--name", "nobody").stdout.startswith("No task with a fingerprint")


def test_a_cause_is_shown_with_its_tasks(shell: Shell, ids: list[int]) -> None:
    told = shell("errors", "show", HEX)
    shown = shell.json("errors", "show", HEX, "--most", "2")
    assert f"fingerprint          {HEX}" in told.stdout
    assert "hours                4 within the last hour\n" in told.stdout
    assert len(shown["hours"]) == 24
    assert all(str(task_id) in told.stdout for task_id in ids)
    assert [task["id"] for task in shown["tasks"]] == ids[:1:-1]
    assert shown["sample"]["message"] == "nobody at 3"
    assert [task["id"] for task in shell.json("list", "--fingerprint", HEX)] == ids[::-1]
    assert f"fingerprint          {HEX}" in shell("show", str(ids[0])).stdout


def test_a_cause_is_requeued_in_stages(shell: Shell, engine: Engine, ids: list[int]) -> None:
    dry = shell("errors", "requeue", HEX, "--dry-run")
    first = shell("errors", "requeue", HEX, "--first", "1")
    staged = shell("errors", "requeue", HEX, "--stages", "1,rest", "--patience", "0s")
    rest = shell.json("errors", "requeue", HEX, "--stages", "rest")
    assert dry.stdout == "4 tasks would be requeued. Nothing was changed.\n"
    assert "No live worker serves default. Start one: " in first.stderr
    assert first.stdout.startswith("1 task of the stage requeued\nTo go on: tasks-app rest ")
    assert staged.stderr.splitlines(keepends=True)[-1] == "Stopped: 1 task had not ended.\n"
    assert [len(stage["ids"]) for stage in rest] == [2]
    assert pools(engine, ids) == {"pending PENDING": 4}
    assert [each.returncode for each in (dry, first, staged)] == [0, 0, 1]


def test_a_cause_is_marked_and_unmarked(shell: Shell, ids: list[int]) -> None:
    known = shell("errors", "known", HEX, "--by", "ann", "--until", "7d", "--note", "ticket 7")
    group = shell.json("errors")[0]
    unknown, again = (shell("errors", "unknown", HEX) for _ in range(2))
    assert (known.stdout, unknown.stdout) == ("known\n", "It is not marked any more.\n")
    assert (group["known_by"], group["note"]) == ("ann", "ticket 7")
    assert (again.returncode, "is not marked as known" in again.stderr) == (1, True)
    assert shell("errors", "known", "00" * 8).returncode == 1


def test_old_errors_are_named_and_filled(shell: Shell, engine: Engine, ids: list[int]) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE task_error SET fingerprint = NULL")
    before = shell("errors")
    filled = shell("errors", "fill")
    assert "Left out: 5 tasks without a fingerprint. Run: tasks-app errors fill" in before.stderr
    assert filled.stdout == "5 tasks filled\n"
    assert shell.json("errors")[0]["number"] == 4
