"""Many tasks from the shell: dry runs, stages, edits, and the audit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.cli.shell import Shell, token_of
from tests.factory import pending_task
from tests.runtime.api.acts import failed_task, make, pools

EDITED = """
from pydantic import BaseModel
from tasks_app import handler

class Order(BaseModel):
    order_id: int

@handler("cli.order")
def order(ctx, payload: Order):
    pass
"""


@pytest.fixture
def run(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    (tmp_path / "cli_orders.py").write_text(EDITED)
    monkeypatch.setenv("TASKS_APP_IMPORTS", "cli_orders")
    return shell


def test_a_dry_run_then_the_first_then_the_rest(run: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        ids = [failed_task(connection, "shop.Away", "nobody there") for _ in range(5)]
        failed_task(connection, "Other", "m")

    dry = run("requeue", "--name", "t", "--error-kind", "Away", "--dry-run")
    staged = run("requeue", "--name", "t", "--error-kind", "Away", "--first", "2")
    token = token_of(staged.stdout)
    left = run("rest", token, "--dry-run")
    rest = run("rest", token)
    again = run("rest", token)

    assert re.search(r"^t +FAILED +5 *$", dry.stdout, re.M)
    assert "5 tasks are selected. Nothing was changed." in dry.stdout
    assert f"2 requeued\nids: {ids[0]} {ids[1]}\n" in staged.stdout
    assert f"To go on: tasks-app rest {token}" in staged.stdout
    assert "3 tasks are selected" in left.stdout
    assert rest.stdout.startswith("3 requeued\n")
    assert again.stdout == "nothing to do\n"
    assert {done.returncode for done in (dry, staged, left, rest, again)} == {0}
    assert pools(engine, ids) == {"pending PENDING": 5}


def test_the_audit_lists_and_shows_how_it_went(run: Shell, engine: Engine) -> None:
    make(engine, 3)
    staged = run("cancel", "--name", "t", "--first", "2")
    run("pause", "mail", "--reason", "why")

    listed = run("audit").stdout
    shown = run("audit", token_of(staged.stdout)).stdout
    as_json = run.json("audit", token_of(staged.stdout))
    missing = run("audit", "1000000000")

    assert re.search(r"pause .* queue=mail reason=why", listed)
    assert re.search(r"^what +name=t pool=pending$", shown, re.M)
    assert re.search(r"^by +\S+@\S+ as \S+$", shown, re.M)
    assert re.search(r"^now +2 CANCELLED$", shown, re.M)
    assert re.search(r"^to go on +tasks-app rest \d+$", shown, re.M)
    assert as_json["states"] == {"CANCELLED": 2}
    assert (missing.returncode, missing.stdout) == (1, "")


def test_an_edit_that_the_model_refuses_names_ids_and_no_payload(
    run: Shell, engine: Engine
) -> None:
    (task_id,) = make(engine, 1, name="cli.order", payload={"order_id": 1})

    refused = run("edit", "--name", "cli.order", "--set", 'order_id="secret"')
    edited = run("edit", str(task_id), "--set", "order_id=2")
    listed = run("audit", token_of(refused.stdout), "--json")

    assert refused.returncode == 1
    told = f"1 left as it is, its handler refuses payload.order_id: {task_id}\n"
    assert refused.stderr == told
    assert (edited.returncode, edited.stdout.splitlines()[1:]) == (
        0,
        ["1 edited", f"ids: {task_id}"],
    )
    gone = run("edit", str(task_id), "1000000000", "--set", "order_id=2", "--queue", "other")
    assert gone.returncode == 1
    assert gone.stderr == (
        "2 left as they are, not found, already like this, or with a state or options that "
        "do not fit: "
        f"{task_id} 1000000000\n"
    )
    assert run.json("show", str(task_id))["task"]["payload"] == {"order_id": 2}
    assert "secret" not in refused.stdout + refused.stderr + listed.stdout


def test_ids_alone_are_answered_one_by_one(run: Shell, engine: Engine) -> None:
    (task_id,) = make(engine, 1)
    done = run("cancel", str(task_id), "1000000000")
    assert (done.returncode, done.stdout) == (
        1,
        f"{task_id}  cancelled\n1000000000  not found\n",
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("cancel",), "This selects every task"),
        (("requeue", "--pool", "error"), "This selects every task"),
        (("edit", "1"), "Give --set"),
        (("edit", "1", "--set", "a=text"), "a isn't JSON"),
        (("edit", "1", "--set", "a"), "a has no ="),
        (("edit", "1", "--merge", "[1]"), "must be a JSON object"),
        (("cancel", "--older-than", "soon"), "older_than is 'soon'"),
    ],
)
def test_nonsense_ends_with_2(run: Shell, arguments: tuple[str, ...], problem: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert problem in done.stderr


def test_a_filter_and_ids_must_both_be_true(run: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        a, b = pending_task(connection, "a"), pending_task(connection, "b")
    done = run("cancel", str(a), str(b), "--name", "a")
    assert f"ids: {a}\n" in done.stdout


def test_a_queue_is_shared_listed_and_not_shared(run: Shell) -> None:
    shared = run("fair", "mail", "--weight", "tenant:gold=3", "--weight", "b=0.5")
    listed = run("fair").stdout
    off, again = run("fair", "mail", "--off"), run("fair", "mail", "--off")
    refused = run("fair", "mail", "--weight", "a=0"), run("fair", "mail", "--weight", "a")
    assert shared.stdout == "shared by fair_key\n"
    assert re.search(r"^mail +b=0.5 tenant:gold=3 *$", listed, re.M)
    assert (off.stdout, again.stdout) == ("by priority and age\n", "was not shared\n")
    assert [done.returncode for done in refused] == [2, 2]
    assert re.search(r" share .*\s+queue=mail weights", run("audit").stdout)
