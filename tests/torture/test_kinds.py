"""Faults of the fault tests, and mutants: the list of each is true."""

from __future__ import annotations

import ast
import re
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from celery import Celery
from sqlalchemy import text

import dev.torture.__main__ as command
from dev.torture import matrix, zombies
from dev.torture.brokers import Broker, ValkeyBroker
from dev.torture.failpoints import (
    ACTIONS,
    CALM,
    HITS,
    Dice,
    Failpoint,
    Injected,
    hits,
    install,
    read,
)
from dev.torture.kinds import KINDS, OF_A_POOLER, OF_BATCHES, Kind, together
from dev.torture.mutants.all import ALL
from dev.torture.mutants.change import Change, Mutant, StaleMutantError, apply, restore
from dev.torture.mutants.trial import Trial
from dev.torture.points import AFTER, PLACES, place
from dev.torture.rabbit_broker import RabbitBroker
from dev.torture.rabbit_node import Node, rabbitmq_program
from dev.torture.surroundings import Surroundings
from tasks_app.broker.app import register
from tasks_app.broker.defaults import celery_defaults
from tasks_app.broker.publisher import CeleryPublisher
from tasks_app.embedded.servers import Valkey
from tasks_app.runtime.hint_sender import Message
from tests.cases import in_one_test
from tests.conftest import CASES
from tests.environment import run_program


def test_there_are_more_than_forty_and_no_two_have_one_name() -> None:
    names = [kind.name for kind in (*KINDS, *OF_A_POOLER, *OF_BATCHES)]
    assert len(set(names)) == len(names) >= 40


@in_one_test("kind", [*KINDS, *OF_A_POOLER, *OF_BATCHES])
def test_each_kind_does_something(kind: Kind) -> None:
    assert re.fullmatch(r"F\d\d ([a-z]|SIG).*", kind.name)
    assert bool(kind.hurt) != bool(read(kind.failpoints))


@pytest.mark.parametrize("page", ["Makefile", "docs/guarantees.md"])
def test_what_is_told_of_their_number_is_true(project: Path, page: str) -> None:
    told = re.findall(r"(\d+) kinds\s+of\s+faults", (project / page).read_text())
    assert told == [str(len(KINDS))]


def test_kinds_are_chosen_by_words_of_their_names() -> None:
    usual = Surroundings()
    assert matrix.chosen("F17, half of what", usual)
    assert {kind.name[:3] for kind in matrix.chosen("F17,F18", usual)} == {"F17", "F18"}
    assert matrix.chosen("", usual) == list(KINDS)
    assert matrix.chosen("no such thing", usual) == []
    assert matrix.chosen("", usual, batches=True) == [*KINDS, *OF_BATCHES]


def test_what_happens_to_a_pooler_is_drawn_only_where_there_is_one() -> None:
    names = {kind.name for kind in OF_A_POOLER if kind.hurt}
    for surroundings in (Surroundings(), Surroundings(pgbouncer=True)):
        drawn = {name for name, _ in together(surroundings, engine=False, rarer=1)[0]}
        there = names if surroundings.pgbouncer else set()
        assert drawn & names == there
        assert {kind.name for kind in matrix.chosen("", surroundings)} & names == there


def test_a_page_names_what_its_runs_stood_on_and_how_to_have_it_again() -> None:
    surroundings = Surroundings(16, pgbouncer=True, rabbitmq=True)
    assert surroundings.options == " --postgres 16 --pgbouncer --rabbitmq"
    assert (
        "a PostgreSQL 16 behind a PgBouncer in transaction mode, a RabbitMQ" in surroundings.words
    )
    assert Surroundings().options == ""


def test_words_that_name_no_kind_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["torture", "matrix", "--only", "F17 F18"])
    assert command.main() == 2
    assert "Separate words by commas" in capsys.readouterr().err


MESSAGES = 4
HERE = "rabbitmq-server"


@pytest.fixture(
    params=[
        "valkey",
        pytest.param(
            "rabbitmq",
            marks=[
                pytest.mark.test_all,
                pytest.mark.skipif(
                    rabbitmq_program(HERE) is None,
                    reason="RabbitMQ is not tested: it needs rabbitmq-server installed",
                ),
            ],
        ),
    ]
)
def tortured(request: pytest.FixtureRequest, broker: Valkey) -> Iterator[Broker]:
    if request.param == "valkey":
        valkey = ValkeyBroker(broker)
        valkey.forget()
        yield valkey
        valkey.forget()
        return
    with Node() as node:
        yield RabbitBroker(node)


@pytest.fixture
def publish(tortured: Broker) -> Iterator[Callable[[], None]]:
    """Send a few messages as beat does, into a queue such as workers make."""
    app = Celery("publishes", set_as_current=False)
    app.conf.update(celery_defaults(tortured.url, 1.0))
    register(app)
    publisher = CeleryPublisher(app)

    def send() -> None:
        with app.connection_for_write() as connection:
            app.amqp.queues["default"].bind(connection.default_channel).declare()
        messages = [Message("default", (n,)) for n in range(1, MESSAGES + 1)]
        assert publisher.publish(messages) == {}

    yield send
    publisher.close()
    app.close()


def test_messages_of_ours_are_seen_repeated_lost_and_forgotten(
    tortured: Broker, publish: Callable[[], None]
) -> None:
    assert tortured.waiting() == []
    publish()
    waiting = tortured.waiting()
    tortured.deliver(waiting)
    assert len(waiting) == MESSAGES
    assert len(tortured.waiting()) == 2 * MESSAGES
    tortured.lose_half()
    assert len(tortured.waiting()) in {MESSAGES, MESSAGES + 1}
    tortured.forget()
    assert tortured.waiting() == []


def test_what_is_forged_lies_where_our_messages_lie(
    tortured: Broker, publish: Callable[[], None]
) -> None:
    publish()
    tortured.forge([b"{}", b"\x00\xff"])
    assert len(tortured.waiting()) == MESSAGES + 2


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("point", PLACES)
def test_every_point_is_where_it_is_said_to_be(point: str) -> None:
    assert callable(place(point).call)


def test_every_late_point_is_a_point() -> None:
    assert set(PLACES) >= AFTER


def test_failpoints_are_read_from_a_line() -> None:
    assert read("claim.before=kill@0.5; settle.committed=sleep:2;") == [
        Failpoint("claim.before", "kill", 0, 0.5),
        Failpoint("settle.committed", "sleep", 2, 1),
    ]


@pytest.mark.parametrize("line", ["claim=kill", "claim.before=explode", "claim.before=kill@often"])
def test_what_cannot_be_read_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"failpoint|could not convert"):
        read(line)


def test_before_the_call_nothing_was_done_and_after_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    dice = Dice("1")
    for point in ("sweep.before", "sweep.done"):
        monkeypatch.setattr(place(point).owner, "sweep", lambda: done.append("swept"))
        restore = install(Failpoint(point, "raise", 0, 1), dice, tmp_path)
        with pytest.raises(Injected):
            place(point).call()
        restore()
        place(point).call()
        done.append("--")

    assert done == ["swept", "--", "swept", "swept", "--"]
    assert hits(tmp_path / HITS) == {"sweep.before raise": 1, "sweep.done raise": 1}


def test_the_seed_decides_how_often(tmp_path: Path) -> None:
    first, second, other = (Dice(seed) for seed in ("7", "7", "8"))
    draws = [[dice.falls(0.3) for _ in range(200)] for dice in (first, second, other)]
    assert draws[0] == draws[1] != draws[2]
    assert 30 < sum(draws[0]) < 90


SCRIPT = """
import socket, sys, dev.torture.failpoints as f
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
f.set_up()
from tasks_app.runtime import scan
try:
    scan.sweep(None, [1])
except Exception as error:
    print(type(error).__name__)
client.settimeout(5)
try:
    print("whole" if client.recv(1) else "cut")
except ConnectionResetError:
    print("cut")
"""


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("action", "status", "output"),
    [("kill", -signal.SIGKILL, ""), ("exit:3", 3, ""), ("cut", 0, "AttributeError\ncut\n")],
)
def test_a_process_is_hurt(tmp_path: Path, action: str, status: int, output: str) -> None:
    environment = {
        "TORTURE_FAILPOINTS": f"sweep.before={action}",
        "TORTURE_FOLDER": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    ended = run_program([sys.executable, "-c", SCRIPT], env=environment)
    assert (ended.returncode, ended.stdout) == (status, output), ended.stderr
    assert hits(tmp_path / HITS) == {f"sweep.before {action.partition(':')[0]}": 1}


def test_when_it_is_calm_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place("sweep.before").owner, "sweep", lambda: "swept")
    restore = install(Failpoint("sweep.before", "raise", 0, 1), Dice("1"), tmp_path)
    (tmp_path / CALM).touch()
    assert place("sweep.before").call() == "swept"
    assert not hits(tmp_path / HITS)
    restore()


def test_all_actions_that_are_promised_exist() -> None:
    assert set(ACTIONS) == {"kill", "exit", "raise", "sleep", "hog", "stop", "cut"}


@pytest.mark.test_all
def test_whatever_a_zombie_writes_is_refused() -> None:
    ended = zombies.trials(16, 8, seed=1)
    assert sum(ended.values()) == 16
    assert all("refused" in what for what, times in ended.items() if times)


@pytest.mark.test_all
def test_an_accepted_write_would_be_seen() -> None:
    careless = text("DELETE FROM task_pending WHERE id = :id")
    by_id = {"by id": lambda c, task: c.execute(careless, {"id": task.task_id}).rowcount == 1}
    assert zombies.trials(2, 2, 1, by_id)["by id: ACCEPTED"] == 2


each = in_one_test("mutant", ALL)


@each
def test_what_it_changes_is_there_and_still_python_afterwards(
    mutant: Mutant, project: Path, tmp_path: Path
) -> None:
    for file in mutant.files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text((project / file).read_text())
    before = apply(mutant, tmp_path)
    for file in mutant.files:
        if file.endswith(".py"):
            ast.parse((tmp_path / file).read_text())
        assert (tmp_path / file).read_text() != before[file]
    restore(before, tmp_path)
    assert [(tmp_path / f).read_text() for f in mutant.files] == list(before.values())


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def names_of(node: ast.AST) -> list[str]:
    """A test may be imported from the support module that several test files share."""
    if isinstance(node, ast.ImportFrom):
        return [imported.name for imported in node.names]
    return [getattr(node, "name", "")]


@each
def test_the_tests_that_it_names_are_there(mutant: Mutant, project: Path) -> None:
    assert mutant.tests
    for test in mutant.tests:
        file, *names = test.split("::")
        within: ast.AST = parsed(project / file)
        for name in names:
            found = [
                n for n in ast.iter_child_nodes(within) if name.partition("[")[0] in names_of(n)
            ]
            assert found, f"{test} is not there"
            within = found[0]


def test_so_are_their_cases_as_far_as_this_run_has_collected_them(
    request: pytest.FixtureRequest,
) -> None:
    cases = request.config.stash[CASES]
    by_hand = {each.partition("[")[0] for each in request.config.args if "[" in each}
    collected = {case.partition("[")[0] for case in cases} - by_hand
    named = {test for mutant in ALL for test in mutant.tests if "[" in test}
    looked_at = {test for test in named if test.partition("[")[0] in collected}
    assert looked_at <= cases


def test_there_are_at_least_twenty_and_each_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in ALL}) == len(ALL) >= 20


def test_a_mutant_of_another_tree_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\ntwo\n")
    mutant = Mutant("m", "r", (Change("a.py", "one", "1"), Change("a.py", "three", "3")), ("t",))
    with pytest.raises(StaleMutantError, match="0 times"):
        apply(mutant, tmp_path)
    assert (tmp_path / "a.py").read_text() == "one\ntwo\n"


@pytest.mark.parametrize(
    ("trial", "caught"),
    [
        (Trial((("t", "AssertionError"),), 3, 1.0), True),
        (Trial((("t", "ImportError"), ("u", "ProgrammingError")), 0, 1.0), False),
        (Trial((), 3, 1.0), False),
        (Trial((("t", "AssertionError"),), 3, 1.0, "the tests ran on other code"), False),
    ],
)
def test_only_a_verdict_on_the_products_own_code_counts(trial: Trial, caught: bool) -> None:
    assert trial.caught is caught
