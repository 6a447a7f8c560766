"""``tasks-app errors`` as an operator uses it."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tasks_app.domain.tasks.error_text import fingerprint_of
from tasks_app.domain.tasks.run import Cause
from tests.cli.shell import Shell
from tests.runtime.api.acts import failed_task, pools

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


@pytest.mark.parametrize(
    "words",
    [
        ("show", "12"),
        ("requeue", HEX, "--stages", "1,all"),
        ("requeue", HEX, "--first", "1", "--stages", "1"),
        ("requeue", HEX, "--patience", "soon"),
        ("known", HEX, "--until", "tomorrow"),
        ("known", HEX, "--until", "2026-01-01T12:00"),
    ],
)
def test_wrong_input_is_refused_in_words(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell("errors", *words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
