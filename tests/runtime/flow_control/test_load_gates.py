"""Queues that run only while a function of the user says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tasks_app import InvalidTaskError, change_queue, explain_task, get_queue, load_gate
from tasks_app.domain.errors import HandlerError
from tasks_app.domain.queues import queue_status
from tasks_app.runtime.flow_control import load_gates
from tasks_app.runtime.flow_control.load_gates import LoadGates
from tests.clock import until
from tests.runtime.bench import Bench

GATE = "business_is_idle"


@pytest.fixture(autouse=True)
def none_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_gates, "LOAD_GATES", {})


def shut(bench: Bench, gates: LoadGates) -> str | None:
    gates.switch()
    return bench.sql("SELECT shut FROM task_queue")


def answer(connection: Connection) -> Any:
    return connection.scalar(text("SELECT count(*) = 0 FROM task_completed"))


def test_a_queue_runs_only_while_it_says_so(bench: Bench) -> None:
    bench.succeeding()
    bench.do(change_queue, "default", only_while=GATE)
    load_gate(GATE)(answer)
    gates = LoadGates(bench.settings(), bench.database())
    assert shut(bench, gates) is None
    bench.run_one()
    assert shut(bench, gates) == "load"
    waiting = bench.create()
    bench.execute([waiting])
    assert bench.state(waiting) == "PENDING"
    found = bench.do(get_queue, "default")
    assert queue_status(found) == "shut: business_is_idle says no"
    said = bench.do(explain_task, waiting).findings[0]
    assert said.subject == "gate"
    assert said.fact.endswith("it runs only while business_is_idle says so")
    assert said.advice.endswith("tasks-app queues set default --only-while none")

    bench.sql("DELETE FROM task_completed")

    assert shut(bench, gates) is None
    bench.execute([waiting])
    assert bench.state(waiting) == "SUCCEEDED"


def fails(_: Connection) -> bool:
    raise ValueError("no replica")


def writes(connection: Connection) -> bool:
    connection.execute(text("DELETE FROM task_queue"))
    return True


def sleeps(connection: Connection) -> bool:
    connection.execute(text("SELECT pg_sleep(100)"))
    return True


@pytest.mark.parametrize(
    ("gate", "problem"),
    [
        (None, "no module of TASKS_APP_IMPORTS declares it"),
        (fails, "it raised ValueError: no replica"),
        (writes, "it raised ReadOnlySqlTransaction: "),
        (sleeps, "it raised QueryCanceled: "),
    ],
)
def test_without_an_answer_it_stays_shut_and_the_log_says_why_once(
    bench: Bench,
    caplog: pytest.LogCaptureFixture,
    gate: Callable[[Connection], bool] | None,
    problem: str,
) -> None:
    bench.do(change_queue, "default", only_while=GATE)
    if gate is not None:
        load_gate(GATE)(gate)
    gates = LoadGates(bench.settings(), bench.database())
    assert shut(bench, gates) == "load"
    assert shut(bench, gates) == "load"
    said = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(said) == 1
    assert said[0].startswith(f"load gate {GATE}: its queues start nothing: {problem}")

    load_gate("other")(answer)
    bench.do(change_queue, "default", only_while="other")

    assert shut(bench, gates) is None


def test_what_is_declared_twice_or_badly_is_refused() -> None:
    load_gate(GATE)(fails)
    load_gate(GATE)(fails)
    with pytest.raises(HandlerError, match=r"business_is_idle is .*fails already"):
        load_gate(GATE)(writes)
    with pytest.raises(InvalidTaskError, match=r"options\.only_while is 'at night'"):
        load_gate("at night")


@pytest.mark.test_all
def test_the_process_that_scans_asks_it(bench: Bench) -> None:
    bench.succeeding()
    bench.do(change_queue, "default", only_while=GATE)
    idle = [False]
    load_gate(GATE)(lambda _: idle[0])
    task_id = bench.create()
    bench.beside(bench.work(scan_interval=0.2).run)
    until(lambda: bench.sql("SELECT shut FROM task_queue") == "load", 15)
    assert bench.state(task_id) == "PENDING"

    idle[0] = True

    until(lambda: bench.state(task_id) == "SUCCEEDED", 15)


def test_a_process_that_has_no_handlers_imports_it(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_of_a_gate.py").write_text(
        "from tasks_app import load_gate\nload_gate('business_is_idle')(lambda connection: True)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    bench.do(change_queue, "default", only_while=GATE)
    beat = LoadGates(bench.settings(imports="module_of_a_gate"), bench.database())
    assert shut(bench, beat) is None
