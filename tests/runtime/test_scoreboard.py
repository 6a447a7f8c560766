"""Slots: records of living and dead children, with real processes that are killed."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.tasks.run import Run
from tasks_app.runtime.scoreboard import MOST_RUNS, SLOTS, Scoreboard, Stage, new_slot_path
from tasks_app.runtime.worker.supervisor import kill_holdouts, kill_overdue, silent_housekeeper
from tests.clock import until
from tests.runtime.mortal import Mortal

Stranger = Callable[..., Mortal]


@pytest.fixture
def slots(tmp_path: Path) -> Scoreboard:
    return Scoreboard(tmp_path / "slots")


@pytest.fixture
def stranger(slots: Scoreboard) -> Iterator[Stranger]:
    """Start another process that takes a slot and says that it runs these ids."""
    started: list[Mortal] = []

    def start(owner: str, *ids: int) -> Mortal:
        started.append(Mortal(slots, owner, [Run(i, 1) for i in ids], hard_limit_s=0.0))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def test_a_record_can_be_read_by_whoever_maps_the_file(slots: Scoreboard) -> None:
    slot = slots.take("me")
    slot.message(in_hand=True)
    slot.start(Run(42, 3), 60)
    (view,) = Scoreboard(slots.path).occupied()
    assert (view.owner, view.messages, view.running) == ("me", 1, (Run(42, 3),))
    assert view.kill_at - view.since == pytest.approx(60)
    assert not view.dead


def test_a_finished_run_and_an_empty_hand_leave_the_record(slots: Scoreboard) -> None:
    slot = slots.take("me")
    slot.message(in_hand=True)
    slot.start(Run(1, 1), 60)
    slot.start(Run(2, 1), 30)

    slot.finish(Run(1, 1))
    (one,) = slots.occupied()
    slot.finish(Run(2, 1))
    slot.message(in_hand=False)
    (none,) = slots.occupied()

    assert one.running == (Run(2, 1),)
    assert (none.running, none.since, none.kill_at, none.messages) == ((), 0, 0, 0)


def test_each_thread_has_a_message_of_its_own_in_hand(slots: Scoreboard) -> None:
    slot = slots.take("me")
    slot.message(in_hand=True)
    other = threading.Thread(target=slot.message, kwargs={"in_hand": True})
    other.start()
    other.join()
    (both,) = slots.occupied()
    slot.message(in_hand=False)
    (one,) = slots.occupied()
    assert (both.messages, one.messages) == (2, 1)


def test_a_record_tells_of_each_of_thousands_and_how_many_more_there_are(slots: Scoreboard) -> None:
    first, second = slots.take("first"), slots.take("second")
    second.start(Run(9, 9), 60)
    for number in range(MOST_RUNS + 2):
        first.start(Run(number + 1, 1), 60)
    first.finish(Run(MOST_RUNS + 2, 1))
    one, other = slots.occupied()
    assert one.running == tuple(Run(number + 1, 1) for number in range(MOST_RUNS))
    assert (one.unlisted, other.unlisted) == (1, 0)
    assert other.running == (Run(9, 9),)


def test_a_place_in_the_list_is_used_again(slots: Scoreboard) -> None:
    slot = slots.take("me")
    for number in range(1, 4):
        slot.start(Run(number, 1), 60)
    slot.finish(Run(1, 1))
    slot.finish(Run(2, 1))
    slot.start(Run(4, 1), 30)
    (view,) = slots.occupied()
    assert view.running == (Run(4, 1), Run(3, 1))
    assert slot._places_used == 3


def test_who_takes_a_record_over_finds_no_runs_in_it(slots: Scoreboard) -> None:
    dead = slots.take("dead")
    dead.start(Run(1, 1), 60)
    (view,) = slots.occupied()
    slots.free(view)
    slots.take("next")
    (view,) = slots.occupied()
    assert (view.owner, view.running, view.since, view.kill_at) == ("next", (), 0.0, 0.0)


def test_the_file_takes_no_room_for_lists_that_nobody_wrote(slots: Scoreboard) -> None:
    slots.take("me").start(Run(1, 1), 60)
    assert slots.path.stat().st_blocks * 512 < 1024 * 1024


def test_a_slot_that_was_left_is_not_written_again(slots: Scoreboard) -> None:
    slot = slots.take("me")
    slot.free()
    slot.beat()
    slot.finish(Run(1, 1))
    assert slots.occupied() == []
    slots.take("you")
    slot.free()
    assert [view.owner for view in slots.occupied()] == ["you"]


def test_the_stage_only_rises_and_everybody_sees_it(slots: Scoreboard) -> None:
    other = Scoreboard(slots.path)
    seen = [other.stage]
    for step in (slots.drain, slots.leave, slots.drain):
        step()
        seen.append(other.stage)
    assert seen == [Stage.RUNS, Stage.DRAINS, Stage.LEAVES, Stage.LEAVES]


def test_a_slot_that_was_left_is_given_out_again(slots: Scoreboard) -> None:
    first = slots.take("first")
    second = slots.take("second")
    first.free()
    slots.take("third")
    assert [view.owner for view in slots.occupied()] == ["third", "second"]
    second.free()


def test_there_are_only_so_many(slots: Scoreboard) -> None:
    for number in range(SLOTS):
        slots.take(f"owner {number}")
    with pytest.raises(RuntimeError, match="Run more workers"):
        slots.take("one too many")


@pytest.mark.test_all
def test_a_killed_process_is_dead_before_its_reaping(slots: Scoreboard, stranger: Stranger) -> None:
    process = stranger("other", 42)
    (alive,) = slots.occupied()
    assert not alive.dead
    process.kill(reap=False)
    (view,) = slots.occupied()
    assert view.running == (Run(42, 1),)
    until(lambda: view.dead)
    process.reap()
    assert view.dead


def test_a_pid_that_was_given_out_anew_is_not_the_child(slots: Scoreboard) -> None:
    slots.take("me")
    (view,) = slots.occupied()
    assert not view.dead
    assert replace(view, born=view.born - 60).dead


def test_a_new_clock_kills_nobody(slots: Scoreboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interleaving: a child takes its slot; NTP corrects the time; a sibling looks."""
    slots.take("me")
    (view,) = slots.occupied()
    booted = psutil.boot_time()
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: booted + 5)
    assert not view.dead


@pytest.mark.test_all
def test_a_second_burial_spares_the_next_owner(slots: Scoreboard, stranger: Stranger) -> None:
    """Interleaving: A and B see the dead child; A frees its slot; C takes it; B frees."""
    process = stranger("dead")
    process.kill()
    (seen,) = slots.occupied()
    assert slots.free(seen)
    slots.take("next")
    assert not slots.free(seen)
    assert [view.owner for view in slots.occupied()] == ["next"]


@pytest.mark.test_all
def test_the_watch_kills_only_who_is_past_its_limit(slots: Scoreboard, stranger: Stranger) -> None:
    overdue = stranger("overdue", 42)  # with a limit of 0 s
    stranger("idle")
    slots.take("myself").start(Run(1, 1), 0.0)
    killed = kill_overdue(slots)
    assert killed == [overdue.pid]
    assert overdue.reap() == signal.SIGKILL
    assert not slots.read(1).dead


@pytest.mark.test_all
def test_the_watch_kills_without_a_housekeeper(slots: Scoreboard, stranger: Stranger) -> None:
    silent = stranger("silent")
    killed = kill_overdue(slots, silent_s=0.0)
    assert killed == [silent.pid]
    assert silent.reap() == signal.SIGKILL


@pytest.mark.test_all
def test_the_watch_does_not_signal_the_dead(slots: Scoreboard, stranger: Stranger) -> None:
    process = stranger("gone", 42)
    process.kill()
    assert kill_overdue(slots) == []


@pytest.mark.test_all
def test_a_child_that_lives_without_its_housekeeper_is_named_and_a_dead_one_is_not(
    slots: Scoreboard, stranger: Stranger
) -> None:
    process = stranger("silent")
    patient = silent_housekeeper(slots)
    named = silent_housekeeper(slots, silent_s=0.0)
    process.kill()
    assert (patient, silent_housekeeper(slots, silent_s=0.0)) == ("", "")
    assert named == f"the housekeeper of child {process.pid} is silent for 0 s"


@pytest.mark.test_all
def test_who_does_not_let_go_is_killed(slots: Scoreboard, stranger: Stranger) -> None:
    holdout, idle = stranger("holdout", 1), stranger("idle")
    assert kill_holdouts(slots) == [holdout.pid]
    assert holdout.reap() == signal.SIGKILL
    assert psutil.pid_exists(idle.pid)


def test_a_run_that_follows_another_stands_in_its_place(slots: Scoreboard) -> None:
    slot = slots.take("me")
    slot.start(Run(1, 1), 60)
    slot.start(Run(2, 1), 60)
    slot.follow(Run(1, 1), Run(3, 2), 100.0, 107.0)
    (view,) = slots.occupied()
    assert view.running == (Run(3, 2), Run(2, 1))
    assert (view.since, view.kill_at) == (100.0, 107.0)


def test_a_run_can_follow_one_that_the_list_had_no_room_for(slots: Scoreboard) -> None:
    slot = slots.take("me")
    listed = tuple(Run(task_id, 1) for task_id in range(10, 10 + MOST_RUNS))
    for run in (*listed, Run(2, 1)):
        slot.start(run, 60)
    slot.follow(Run(2, 1), Run(3, 1), 0.0, 60.0)
    (view,) = slots.occupied()
    slot.finish(Run(3, 1))
    (after,) = slots.occupied()
    assert (view.running, view.unlisted) == (listed, 1)
    assert (after.running, after.unlisted) == (listed, 0)


def test_without_a_folder_to_write_to_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", read_only)
    with pytest.raises(ConfigurationError, match="set TMPDIR to a folder that this user may write"):
        new_slot_path()
