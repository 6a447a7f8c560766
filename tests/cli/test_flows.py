"""Flows as an operator sees and cancels them, and the steps that wait in them."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from sqlalchemy import Engine

from tasks_app.domain.creation import NewTask
from tasks_app.domain.events import event
from tasks_app.domain.flows import (
    MAP_TASK,
    UNDO_TASK,
    CreatedFlow,
    Flow,
    Need,
    PlannedStep,
    ended,
    failed,
)
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.flows import add_needs
from tasks_app.pool.runs.settle import settle_one
from tasks_app.runtime.api.flows import create_flow, graft
from tests.cli.shell import Shell
from tests.factory import claimed_task, do, ending


@pytest.fixture
def flow(engine: Engine) -> CreatedFlow:
    """Of its steps pay has failed and pack runs."""
    made = Flow("order")
    pay, pack = made.step("pay", "t"), made.step("pack", "t")
    ship = made.step("ship", "t", needs=[pay, pack])
    made.step("sorry", "t", needs=[failed(pack), ended(ship)])
    created = do(engine, create_flow, made, key="order:7")
    with engine.begin() as connection:
        task = claimed_task(connection, created.task_ids["pay"])
        settle_one(connection, ending(task, Event.FAIL, cause=Cause("ValueError", "no money")))
        claimed_task(connection, created.task_ids["pack"])
    return created


def test_flows_are_listed_by_name_key_and_state(shell: Shell, flow: CreatedFlow) -> None:
    line = rf"^{flow.id} +running +order +order:7 +4 +0 +1 +just now$"
    assert re.search(line, shell("flows", "list").stdout, re.M)
    for fits in (("--name", "order"), ("--key", "order:7"), ("--state", "running")):
        assert [each["id"] for each in shell.json("flows", "list", *fits)] == [flow.id]
    for other in (("--name", "x"), ("--key", "x"), ("--state", "stalled")):
        assert shell.json("flows", "list", *other) == []


def test_each_step_says_what_it_does_or_waits_for(
    shell: Shell, flow: CreatedFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = shell("flows", "show", str(flow.id)).stdout
    ids = flow.task_ids
    assert re.search(rf"^pay +failed +{ids['pay']} +just now", shown, re.M)
    assert "    ValueError: no money" in shown
    assert re.search(rf"^pack +runs +{ids['pack']}$", shown, re.M)
    assert re.search(rf"^ship +waits +{ids['ship']} +pack, pay$", shown, re.M)
    assert re.search(rf"^sorry +waits +{ids['sorry']} +failure of pack, end of ship$", shown, re.M)
    assert shown.endswith(f"then: tasks-app requeue {ids['pay']}\n")
    assert max(map(len, shown.splitlines())) <= 80
    steps = shell.json("flows", "show", str(flow.id))["steps"]
    assert [step["open_needs"] for step in steps][2:] == [
        [["pack", "success"], ["pay", "success"]],
        [["pack", "failure"], ["ship", "end"]],
    ]


def test_a_step_says_when_it_retries_and_why(shell: Shell, engine: Engine) -> None:
    made = Flow("order")
    made.step("later", "t", needs=made.step("pay", "t"))
    created = do(engine, create_flow, made)
    pay = created.task_ids["pay"]
    with engine.begin() as connection:
        cause, wait = Cause("ConnectionError", "refused"), timedelta(hours=3)
        task = claimed_task(connection, pay)
        settle_one(connection, ending(task, Event.RETRY, cause=cause, wait=wait))
    shown = shell("flows", "show", str(created.id)).stdout
    assert re.search(rf"^pay +retries in 2 h +{pay} +ConnectionError: refused$", shown, re.M)
    said = shell("explain", str(created.task_ids["later"])).stdout
    assert said.startswith(f"It waits for step pay (task {pay}, retries in 2 h).\n")


def test_what_is_left_of_a_flow_is_cancelled(shell: Shell, flow: CreatedFlow) -> None:
    assert shell("flows", "cancel", str(flow.id)).stdout == "2 cancelled, 1 asked to stop.\n"


def test_a_step_that_waits_is_not_held_and_has_no_date(
    shell: Shell, flow: CreatedFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship = str(flow.task_ids["ship"])
    monkeypatch.setenv("COLUMNS", "80")
    listed, only = shell("list").stdout, shell("list", "--held").stdout
    shown, said = shell("show", ship).stdout, shell("explain", ship).stdout
    stored = shell.json("show", ship)["task"]
    assert re.search(rf"^{ship} +PENDING +waits for its needs ", listed, re.M)
    assert ship not in only
    assert re.search(r"^waits_for +its needs$", shown, re.M)
    assert (stored["held"], stored["waits_for"]) == (False, 2)
    assert "waits_for" not in said
    assert not re.search(r"(?<![\w-])9[5-9]\d\d-\d\d-", f"{listed}{only}{shown}{said}{stored}")

    shell("hold", ship)
    assert re.search(rf"^{ship} +PENDING +held ", shell("list").stdout, re.M)
    assert shell.json("show", ship)["task"]["waits_for"] == 2


def test_explain_names_the_needs_and_the_flow(
    shell: Shell, flow: CreatedFlow, engine: Engine
) -> None:
    ids = flow.task_ids
    said = shell("explain", str(ids["ship"])).stdout
    assert said.startswith(
        f"It waits for step pack (task {ids['pack']}, runs) and step pay (task {ids['pay']}, "
        f"failed).\nTo go on, fix the cause, then: tasks-app requeue {ids['pay']}\n"
    )
    assert f"It is step ship of flow {flow.id} (order, order:7), of whose 4 members" in said
    assert f"tasks-app flows show {flow.id}" in said
    sorry = shell("explain", str(ids["sorry"])).stdout
    assert sorry.startswith(
        f"It waits for the failure of step pack (task {ids['pack']}, runs) and the end of step "
        f"ship (task {ids['ship']}, waits).\nNothing to do; "
    )
    assert "is step pay of flow" in shell("explain", str(ids["pay"])).stdout


def test_a_step_that_waits_is_not_run_now(shell: Shell, flow: CreatedFlow) -> None:
    ship = str(flow.task_ids["ship"])
    one = shell("run-now", ship)
    assert one.returncode == 1
    assert one.stdout.startswith(f"{ship}  It waits for step pack ")
    assert one.stdout.endswith(f" then: tasks-app requeue {flow.task_ids['pay']}\n")
    assert shell.json("run-now", ship)[0]["answer"].startswith("left as it is: it waits")
    for more in ((), ("--rate", "1/1s")):
        done = shell("run-now", "--group", str(flow.id), *more)
        assert "2 unchanged" in done.stdout, done
    assert shell.json("show", ship)["task"]["waits_for"] == 2


@pytest.fixture
def approval(engine: Engine) -> CreatedFlow:
    made = Flow("order")
    needs = [made.step("pay", "t"), event("order:7/fraud", timeout="2d"), event("order:7/ok")]
    made.step("ship", "t", needs=needs)
    return do(engine, create_flow, made)


def test_what_waits_for_an_event_says_so(
    shell: Shell, approval: CreatedFlow, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay, ship = approval.task_ids.values()
    monkeypatch.setenv("COLUMNS", "80")
    said = shell("explain", str(ship)).stdout
    needs = "event order:7/fraud for 2d and event order:7/ok.\n"
    assert said.startswith(f"It waits for step pay (task {pay}, is due), {needs}")
    shown = shell("flows", "show", str(approval.id)).stdout
    assert re.search(rf"^ship +waits +{ship} +pay, event order:7/fraud for 2d, ", shown, re.M)
    assert max(map(len, shown.splitlines())) <= 80
    with engine.begin() as connection:
        settle_one(connection, ending(claimed_task(connection, pay)))
    said = shell("explain", str(ship)).stdout
    assert said.startswith("It waits for event order:7/fraud for 2d and event order:7/ok.\n")
    assert "tasks-app events send order:7/fraud" in said
    assert shell("run-now", str(ship)).returncode == 1

    shell("events", "send", "order:7/ok")
    said = shell("explain", str(ship)).stdout
    assert re.match(
        r"It waits for event order:7/fraud until [\d-]+ \d\d:\d\dZ \(in (2 d|47 h)\)\.\n", said
    )
    assert "It is due" not in said
    assert re.search(
        rf"^ship +waits +{ship} ", shell("flows", "show", str(approval.id)).stdout, re.M
    )


def test_an_operator_sends_an_event_once(
    shell: Shell, approval: CreatedFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    given = ("--payload", '{"limit": 5}', "--by", "anna", "--why", "called them")
    assert (
        shell("events", "send", "order:7/ok", *given).stdout == "It is sent; 1 task waits for it.\n"
    )
    again = shell("events", "send", "order:7/ok")
    assert again.returncode == 1
    assert "it was sent before" in again.stderr
    listed = shell("events", "list").stdout
    assert re.search(r"^order:7/fraud +1 +just now$", listed, re.M)
    assert re.search(r"^order:7/ok +just now +anna +called them$", listed, re.M)
    assert max(map(len, listed.splitlines())) <= 80
    waiting = shell.json("events", "list", "--waiting")
    assert [each["key"] for each in waiting] == ["order:7/fraud"]
    (line,) = shell.json("audit", "--action", "send event")
    assert line["what"] == {"event": "order:7/ok", "why": "called them"}
    assert shell("events", "send", "order:7/fraut").stdout.startswith(
        "It is sent. Nobody waits for it yet: tasks-app events list"
    )


@pytest.mark.parametrize("payload", ["{", "[1]", "7"])
def test_a_payload_that_is_no_object_is_refused(shell: Shell, payload: str) -> None:
    refused = shell("events", "send", "k", "--payload", payload)
    assert refused.returncode != 0
    assert "payload" in refused.stderr
    assert shell.json("events", "list") == []


def test_a_flow_runs_again_from_a_step(shell: Shell, flow: CreatedFlow, engine: Engine) -> None:
    rerun = ("flows", "rerun", str(flow.id), "--from")
    refused = shell(*rerun, "pack")
    assert refused.returncode == 2
    assert f"Step pack (task {flow.task_ids['pack']}) runs. Wait" in refused.stderr
    assert "waits for pack, pay. Run the flow again from there" in shell(*rerun, "ship").stderr
    answer = {"steps": ["pay", "ship", "sorry"], "changed": False}
    would = "3 steps would run again: pay, ship, sorry. Nothing was changed.\n"
    assert shell(*rerun, "pay", "--dry-run").stdout == would
    assert shell.json(*rerun, "pay", "--dry-run") == answer
    done = shell(*rerun, "pay", "--why", "the bank is back")
    assert done.stdout == "3 steps will run again: pay, ship, sorry.\n"
    assert "the bank is back" in shell("audit").stdout
    assert "is due" in shell("flows", "show", str(flow.id)).stdout


def test_a_step_runs_again_with_another_payload(shell: Shell, flow: CreatedFlow) -> None:
    rerun = ("flows", "rerun", str(flow.id), "--from", "pay", "--payload")
    assert "must be a JSON object" in shell(*rerun, "[1]").stderr
    assert "The handler of t is not known here" in shell(*rerun, "{}").stderr


def test_a_map_says_how_many_items_it_waits_for(
    shell: Shell, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    made, more = Flow("f"), Flow("items")
    made.map("label", "t", over=made.step("all", "t"))
    created = do(engine, create_flow, made)
    label, more.steps = (
        created.task_ids["label"],
        dict.fromkeys((f"label[{n}]" for n in range(70)), PlannedStep(NewTask("t"), {})),
    )
    with engine.begin() as connection:
        settle_one(connection, ending(claimed_task(connection, created.task_ids["all"])))
        run = claimed_task(connection, label, name=MAP_TASK)
        items = graft(connection, created.id, more)
        add_needs(connection, label, [Need(name) for name in items])
        settle_one(connection, ending(run, Event.SNOOZE, awaits_needs=True, wait=timedelta(0)))
    said = shell("explain", str(label)).stdout
    assert said.startswith("It waits for 70 of its 70 items.\nNothing to do; ")

    def fails(*ids: int) -> None:
        with engine.begin() as connection:
            for task_id in ids:
                task, cause = claimed_task(connection, task_id), Cause("ValueError", "no paper")
                settle_one(connection, ending(task, Event.FAIL, cause=cause))

    first, *others = items.values()
    fails(first)
    shown = shell("flows", "show", str(created.id)).stdout
    assert re.search(rf"^label +waits +{label} +0 of 70 items, 1 failed$", shown, re.M)
    assert shown.endswith(f"then: tasks-app requeue {first}\n")
    fails(*others)
    again = f"then: tasks-app requeue --group {created.id} --state FAILED\n"
    assert shell("flows", "show", str(created.id)).stdout.endswith(again)
    said = shell("explain", str(label)).stdout
    assert said.startswith(
        f"It waits for 70 of its 70 items, of which 70 failed.\nTo go on, fix the cause, {again}"
    )
    assert "step label[0] of flow" in shell("explain", str(first)).stdout


def test_a_flow_is_undone(shell: Shell, flow: CreatedFlow, engine: Engine) -> None:
    undo = ("flows", "undo")
    for more in ((), ("--dry-run",)):
        refused = shell(*undo, str(flow.id), *more)
        assert refused.returncode == 2
        assert f"has an undo=. To stop it: tasks-app flows cancel {flow.id}" in refused.stderr
    assert "There is no flow 999" in shell(*undo, "999", "--dry-run").stderr
    made = Flow("trip")
    made.step("hotel", "t", needs=made.step("car", "t", undo="u"), undo="u")
    created = do(engine, create_flow, made)
    with engine.begin() as connection:
        for task_id in created.task_ids.values():
            settle_one(connection, ending(claimed_task(connection, task_id)))
    would = "2 steps would be undone: hotel, car. Nothing was changed.\n"
    assert shell(*undo, str(created.id), "--dry-run").stdout == would
    done = shell.json(*undo, str(created.id), "--why", "ill")
    assert done == {"steps": ["hotel", "car"], "changed": True}
    assert re.search(r"^undo +is due", shell("flows", "show", str(created.id)).stdout, re.M)
    assert "why=ill" in shell("audit").stdout
    (step,) = (s for s in shell.json("flows", "show", str(created.id))["steps"][2:])
    assert re.search(r"undo .*@.* ill", shell("show", str(step["task_id"]), "--trail").stdout)
    for more in ((), ("--dry-run",)):
        again = "It was undone before; nothing was changed.\n"
        assert shell(*undo, str(created.id), *more).stdout == again
        assert shell.json(*undo, str(created.id), *more) == {"steps": [], "changed": False}


def test_what_was_undone_is_not_to_go_on(shell: Shell, engine: Engine) -> None:
    made = Flow("trip")
    car = made.step("car", "t", undo="u")
    hotel = made.step("hotel", "t", needs=car)
    made.step("mail", "t", needs=hotel)
    created = do(engine, create_flow, made)
    with engine.begin() as connection:
        settle_one(connection, ending(claimed_task(connection, created.task_ids["car"])))
        task = claimed_task(connection, created.task_ids["hotel"])
        settle_one(connection, ending(task, Event.FAIL, cause=Cause("ValueError", "no bed")))
    shell("flows", "undo", str(created.id))
    assert "To go on" not in shell("flows", "show", str(created.id)).stdout
    for step in ("hotel", "mail"):
        said = shell("explain", str(created.task_ids[step])).stdout
        assert "\nNothing to do: its flow was undone.\n" in said
        assert "requeue" not in said
    anew = f"Flow {created.id} was undone. Create it anew"
    rerun = ("flows", "rerun", str(created.id), "--dry-run", "--from")
    assert f"{anew}." in shell(*rerun, "car").stderr
    shell("requeue", str(created.task_ids["mail"]))
    assert "requeue" not in shell("explain", str(created.task_ids["mail"])).stdout

    undo = shell.json("flows", "show", str(created.id))["steps"][-1]["task_id"]
    with engine.begin() as connection:
        task = claimed_task(connection, undo, name=UNDO_TASK)
        settle_one(connection, ending(task, Event.FAIL, cause=Cause("ValueError", "no")))
    shown = shell("flows", "show", str(created.id)).stdout
    assert shown.endswith(f"To go on, fix the cause, then: tasks-app requeue {undo}\n")
    assert f"then: tasks-app requeue {undo}\n" in shell("explain", str(undo)).stdout
    assert f"{anew}; or run the undoing again from undo." in shell(*rerun, "car").stderr
    assert shell(*rerun, "undo").stdout.startswith("1 step would run again: undo.")
