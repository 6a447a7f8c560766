"""Failpoints hurt where they say, as often as they say, and are written down first."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
from dev.torture.points import AFTER, PLACES, place

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
    [
        ("kill", -signal.SIGKILL, ""),
        ("exit:3", 3, ""),
        ("cut", 0, "AttributeError\ncut\n"),
    ],
)
def test_a_process_is_hurt(tmp_path: Path, action: str, status: int, output: str) -> None:
    environment = {
        "TORTURE_FAILPOINTS": f"sweep.before={action}",
        "TORTURE_FOLDER": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }

    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False
    )

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
