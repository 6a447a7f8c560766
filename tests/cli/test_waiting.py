"""Tasks that wait, from the shell: one, several, a selection in stages; and what lists say then."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import Engine

from tests.cli.shell import Shell, token_of
from tests.factory import claimed_task
from tests.runtime.api.bulk_rows import make

VERBS = [
    (("run-now",), "due now"),
    (("reschedule", "--in", "2h"), "rescheduled"),
    (("reschedule", "--at", "2031-01-31T09:00+01:00"), "rescheduled"),
    (("reprioritise", "--to", "0"), "reprioritised"),
    (("move", "--to", "slow"), "moved"),
    (("hold",), "held"),
    (("disable",), "disabled"),
]
each_verb = pytest.mark.parametrize(
    ("words", "answer"), VERBS, ids=[words[0] for words, _ in VERBS]
)


@each_verb
def test_ids_are_answered_one_by_one(
    shell: Shell, engine: Engine, words: tuple[str, ...], answer: str
) -> None:
    (task_id,) = make(engine, 1, delay="1h")
    with engine.begin() as connection:
        running = claimed_task(connection).task_id

    done = shell(*words, str(task_id), "--why", "an outage")
    refused = shell(*words, str(running), "1000000000")

    assert (done.returncode, done.stdout) == (0, f"{task_id}  {answer}\n")
    assert refused.returncode == 1
    assert refused.stdout == f"{running}  running, left as it is\n1000000000  not found\n"
    listed = shell("audit", "--wide").stdout
    assert "why=an outage" in listed
    assert f"ids=[{task_id}]" in listed


@each_verb
def test_a_selection_is_previewed_then_done_in_stages(
    shell: Shell, engine: Engine, words: tuple[str, ...], answer: str
) -> None:
    ids = make(engine, 3, delay="1h")

    dry = shell(*words, "--name", "t", "--dry-run")
    first = shell(*words, "--name", "t", "--first", "1")
    rest = shell("rest", token_of(first.stdout))

    assert "3 tasks are selected. Nothing was changed." in dry.stdout
    assert f"1 {answer}\nids: {ids[0]}\n" in first.stdout
    assert rest.stdout == f"2 {answer}\nids: {ids[1]} {ids[2]}\n"
    assert {done.returncode for done in (dry, first, rest)} == {0}


def test_what_was_so_already_is_said_and_ends_with_1(shell: Shell, engine: Engine) -> None:
    (task_id,) = make(engine, 1)

    done = shell("release", str(task_id))

    assert (done.returncode, done.stdout) == (1, f"{task_id}  unchanged\n")


def test_a_rate_makes_a_bulk_of_ids_too(shell: Shell, engine: Engine) -> None:
    ids = make(engine, 2, delay="1h")

    done = shell("run-now", *map(str, ids), "--rate", "1/1s")

    assert f"2 brought forward\nids: {ids[0]} {ids[1]}\n" in done.stdout
    assert done.returncode == 0
    again = shell("run-now", str(ids[0]), "1000000000", "--rate", "1/1s")
    assert again.returncode == 1
    assert again.stderr.endswith(f"do not fit: {ids[0]} 1000000000\n")


def test_lists_say_held_and_name_no_date(
    shell: Shell, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, other = make(engine, 2, delay="1h")
    shell("hold", str(held), "--why", "the bank asks")
    monkeypatch.setenv("COLUMNS", "80")

    listed, only = shell("list").stdout, shell("list", "--held").stdout
    shown, said = shell("show", str(held)).stdout, shell("explain", str(held)).stdout
    stored = shell.json("show", str(held))["task"]

    assert re.search(rf"^ *{held} +PENDING +held ", listed, re.M)
    assert re.search(rf"^ *{other} +PENDING +due in ", listed, re.M)
    assert re.search(rf"^ *{held} ", only, re.M)
    assert not re.search(rf"^ *{other} ", only, re.M)
    assert re.search(r"^held +True$", shown, re.M)
    assert "the bank asks" in said
    assert f"tasks-app release {held}" in said
    assert stored["held"] is True
    everything = f"{listed}{only}{shown}{said}{stored}"
    assert not re.search(r"(?<![\w-])9[5-9]\d\d-\d\d-", everything)  # a key may hold such digits
    assert max(map(len, f"{listed}\n{only}".splitlines())) <= 80


def test_lists_say_disabled(shell: Shell, engine: Engine) -> None:
    (task_id,) = make(engine, 1, delay="1h")
    shell("disable", str(task_id))

    assert re.search(rf"^{task_id} +PENDING +disabled ", shell("list").stdout, re.M)
    assert " enabled " in shell("list", "--wide").stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("hold",), "This selects every task. Select by name, queue, ids, …"),
        (("reschedule", "1"), "reschedule needs at or delay. Give one."),
        (("reschedule", "1", "--at", "tomorrow"), "is 'tomorrow'. Allowed: an ISO 8601 instant"),
        (("reschedule", "1", "--at", "2031-01-01T00:00"), "has no time zone"),
        (("reschedule", "1", "--in", "soon"), "is 'soon', which is not a duration"),
        (("reprioritise", "1", "--to", "10"), "10 is not in the range"),
        (("reprioritise", "1"), "Missing option '--to'"),
        (("move", "1", "--to", "a b"), "is 'a b'"),
        (("run-now", "1", "--rate", "fast"), "options.rate is not a rate. Allowed: a number and a"),
    ],
)
def test_nonsense_ends_with_2(
    shell: Shell, engine: Engine, arguments: tuple[str, ...], problem: str
) -> None:
    done = shell(*arguments)

    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
