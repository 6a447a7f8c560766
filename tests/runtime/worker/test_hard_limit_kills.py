"""A process with several tasks on board, killed at the hard limit of one: who is charged."""

from __future__ import annotations

import time
from types import SimpleNamespace
from uuid import uuid4

import pytest

from tasks_app.domain.tasks.run import ClaimedTask, Run
from tasks_app.pool.runs.claim import claim
from tasks_app.runtime import scoreboard
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.worker import supervisor
from tasks_app.runtime.worker.reaper import Reaper
from tests.factory import claimer
from tests.runtime.bench import Bench

NOBODY = 2**22 + 1
"""No process has this id."""
LIMIT_S = 3.0


def killed_at_a_limit(bench: Bench, past: list[ClaimedTask], others: list[ClaimedTask]) -> None:
    """Leave the slot of a child that its parent killed, as these were past their limits."""
    now = time.monotonic()
    runs = [(task.run, now - LIMIT_S) for task in past] + [(task.run, now) for task in others]
    for place, (run, since) in enumerate(runs):
        bench.slots.write(
            scoreboard.run_offset(0, place), scoreboard.pack_run(run, since, since + LIMIT_S)
        )
    bench.slots.write(
        scoreboard.head_offset(0),
        scoreboard.pack_head(
            pid=NOBODY,
            born=1.0,
            owner="dead",
            beat=now,
            hungry=0.0,
            places=len(runs),
            untold=0,
            messages=0,
        ),
    )
    (view,) = bench.slots.occupied()
    bench.slots.note_kill(view, now)


def claimed(bench: Bench, number: int, **options: object) -> list[ClaimedTask]:
    ids = [bench.create(**options) for _ in range(number)]
    with bench.engine.begin() as connection:
        return claim(connection, ids, claimer(owner="dead"), uuid4())


def reap(bench: Bench) -> None:
    database = Database(bench.url)
    bench.at_end(database.dispose)
    Reaper(database, bench.slots, bench.registry, bench.settings()).reap_dead()


def charges(bench: Bench, tasks: list[ClaimedTask]) -> list[tuple[str, int, int]]:
    rows = [bench.task(task.task_id) for task in tasks]
    return [(row.state.value, row.failures, row.crashes) for row in rows]


def test_who_was_past_the_hard_limit_is_charged_and_who_ran_beside_it_is_not(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.succeeding(retry="1h,1h")
    slow, beside = claimed(bench, 2)
    killed_at_a_limit(bench, [slow], [beside])

    reap(bench)

    assert charges(bench, [slow, beside]) == [("PENDING", 1, 0), ("PENDING", 0, 1)]
    (charged,), (rescued,) = bench.attempts(slow.task_id), bench.attempts(beside.task_id)
    assert (charged.event, charged.kind) == ("retry", "process died")
    assert (charged.message or "").endswith("was killed at its hard limit of 3 s.")
    assert (rescued.event, rescued.kind) == ("rescue", "process killed")
    assert f"task {slow.task_id} (t) ran past the hard limit and is charged" in caplog.text
    assert bench.slots.occupied() == []


def test_who_ran_alone_at_the_end_is_not_charged_for_one_that_ended_meanwhile(
    bench: Bench,
) -> None:
    """Interleaving: the parent decides to kill; the one past its limit ends; the signal comes."""
    bench.succeeding(retry="1h,1h")
    (beside,) = claimed(bench, 1)
    killed_at_a_limit(bench, [], [beside])

    reap(bench)

    assert charges(bench, [beside]) == [("PENDING", 0, 1)]


def test_the_log_of_a_kill_names_who_was_past_the_limit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slot = bench.slots.take("slow")
    slot.start(Run(19, 1), 0.0)
    slot.start(Run(26, 1), 3600.0)
    signals: list[int] = []
    system = SimpleNamespace(getpid=lambda: 0, kill=lambda pid, _: signals.append(pid))
    monkeypatch.setattr(supervisor, "os", system)

    supervisor.kill_overdue(bench.slots)

    (view,) = bench.slots.occupied()
    assert signals == [view.pid]
    assert "ran past the hard limit (tasks [19])" in caplog.text
    assert list(view.past(view.killed)) == [Run(19, 1)]


def test_a_note_of_a_kill_is_not_of_the_next_child_in_the_slot(bench: Bench) -> None:
    bench.slots.take("next")
    (view,) = bench.slots.occupied()
    bench.slots.write(scoreboard.kill_offset(view.index), scoreboard.pack_kill(NOBODY, 1.0))

    (view,) = bench.slots.occupied()

    assert not view.killed
