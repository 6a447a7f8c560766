"""A folder as an object store: whole files, on the disk, and nothing else."""

from __future__ import annotations

import os
import resource
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tasks_app.runtime.large_values import FolderStore


def test_a_folder_keeps_what_it_was_given(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "new")
    store.put("a" * 32, b"1")
    assert store.get("a" * 32) == b"1"
    assert store.get("b" * 32) is None
    now = datetime.now(UTC)
    assert list(store.keys(now - timedelta(hours=1))) == []
    assert list(store.keys(now + timedelta(hours=1))) == ["a" * 32]
    store.delete("a" * 32)
    store.delete("a" * 32)
    assert store.get("a" * 32) is None


def test_what_a_killed_process_had_begun_is_no_value_and_is_removed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    part = tmp_path / "aa" / f"{'a' * 32}-1.part"
    part.parent.mkdir()
    part.write_bytes(b"ha")
    assert list(store.keys(datetime.now(UTC) + timedelta(hours=1))) == []
    assert not part.exists()


def test_a_disk_that_is_full_does_not_become_fuller_by_each_try(tmp_path: Path) -> None:
    store, longest = FolderStore(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, longest[1]))  # Python ignores its signal
    try:
        with pytest.raises(OSError, match="too large"):
            store.put("a" * 32, b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, longest)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_new_subfolder_is_on_the_disk_as_its_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk, fsync = list[str](), os.fsync

    def noted(descriptor: int) -> None:
        on_disk.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    FolderStore(tmp_path).put("a" * 32, b"1")
    assert [str(tmp_path), str(tmp_path / "aa")] == [on_disk[0], on_disk[-1]]
