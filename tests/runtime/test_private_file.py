"""A file with payloads: whole or not there, and its writer's alone."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.runtime.transfer import written_privately


def test_of_two_writers_one_is_refused_and_the_other_ones_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"

    with written_privately(path) as first:
        first.write("one\n")
        first.flush()
        with (
            pytest.raises(InvalidSelectionError, match="Another process is writing"),
            written_privately(path) as second,
        ):
            second.write("two\n")
        assert not path.exists()
        first.write("more\n")

    assert path.read_text() == "one\nmore\n"
    assert [file.name for file in tmp_path.iterdir()] == ["tasks.jsonl"]


def test_what_a_killed_writer_left_is_written_anew_with_the_same_mode(tmp_path: Path) -> None:
    path, left = tmp_path / "tasks.jsonl", tmp_path / "tasks.jsonl.part"
    left.write_text("half of a line, and more than what follows")
    left.chmod(0o644)

    with written_privately(path) as file:
        file.write("whole\n")

    assert path.read_text() == "whole\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    path, other = tmp_path / "tasks.jsonl", tmp_path / "other"
    other.write_text("somebody's")
    path.with_name("tasks.jsonl.part").symlink_to(other)

    with (
        pytest.raises(InvalidSelectionError, match="cannot be written"),
        written_privately(path) as file,
    ):
        file.write("ours")

    assert other.read_text() == "somebody's"


def test_a_full_disk_is_said_in_words(tmp_path: Path) -> None:
    def fill() -> None:
        with written_privately(tmp_path / "tasks.jsonl") as file:
            file.write("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InvalidSelectionError, match="cannot be written: No space left on device"):
        fill()

    assert list(tmp_path.iterdir()) == []


def test_a_file_that_somebody_made_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"

    def write() -> None:
        with written_privately(path) as file:
            file.write("ours")
            path.write_text("somebody's")

    with pytest.raises(InvalidSelectionError, match="exists already"):
        write()

    assert path.read_text() == "somebody's"
    assert [file.name for file in tmp_path.iterdir()] == ["tasks.jsonl"]
