"""The files that probes read, and the folders of processes that ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks_app.runtime import health_files
from tasks_app.runtime.health_files import Liveness, judge, project_folder
from tasks_app.runtime.worker.supervisor import LONG_AGO_S, remove_abandoned
from tests.clock import until


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(health_files.RUN_DIR_VARIABLE, str(tmp_path / "run"))
    return tmp_path / "run"


def written_by_somebody_who_died(name: str, **environment: str) -> None:
    beat = f"Liveness('worker', {name!r}, good_for_s=60).beat()"
    code = f"from tasks_app.runtime.health_files import *; {beat}"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **environment})


def test_who_never_showed_itself_is_not_healthy(folder: Path) -> None:
    assert judge("worker") == (False, f"worker: no sign of life in {folder}")
    assert judge("worker", "a@host") == (False, f"worker a@host: no sign of life in {folder}")


def test_a_fresh_beat_is_healthy_until_it_is_stale() -> None:
    Liveness("worker", "a@host", good_for_s=0.2).beat()
    fresh, word = judge("worker")
    until(lambda: not judge("worker")[0])
    assert (fresh, word.partition("alive")[0]) == (True, "worker a@host: ")
    assert judge("worker", "a@host")[1].endswith("(allowed are 0.2 s)")


def test_a_file_is_written_a_few_times_in_its_span_or_when_it_changes(folder: Path) -> None:
    mine = Liveness("worker", "a", good_for_s=60)

    def written(trouble: str = "") -> bool:
        (folder / "worker-a").unlink(missing_ok=True)
        mine.beat(trouble)
        return (folder / "worker-a").exists()

    assert [written(), written(), written("hungry"), written("hungry"), written()] == [
        True, False, True, False, True,
    ]  # fmt: skip
    mine = Liveness("worker", "a", good_for_s=0.5)
    mine.beat()
    until(written)


def test_trouble_is_said() -> None:
    mine = Liveness("beat", "b", good_for_s=60)
    mine.beat("tasks_app.scan fails (TypeError)")
    bad = judge("beat")
    mine.beat()
    assert bad == (False, "beat b: tasks_app.scan fails (TypeError)")
    assert judge("beat")[0]


def test_a_note_is_said_and_makes_nobody_unhealthy() -> None:
    mine = Liveness("worker", "a", good_for_s=60)
    mine.beat(note="the broker does not answer")
    noted = judge("worker")
    mine.beat("hungry", "the broker does not answer")
    both = judge("worker")
    assert noted[0]
    assert noted[1].endswith(" s ago; the broker does not answer")
    assert both == (False, "worker a: hungry; the broker does not answer")


def test_a_process_that_got_the_number_of_one_that_ended_is_not_taken_for_it(folder: Path) -> None:
    mine = Liveness("worker", "a", good_for_s=60)
    mine.beat()
    path = folder / "worker-a"
    first, second = path.read_text().split("\n", 1)
    pid, _, good_for_s, _ = first.split(" ", 3)
    path.write_text(f"{pid} 0.0 {good_for_s} \n1.0 \n")
    another = judge("worker")[1]
    path.write_text(f"{pid} 0.0 0.1 \n{second}")
    assert another == "worker a: its process is gone"
    assert "no sign of life for" in judge("worker")[1]


def test_one_bad_worker_is_enough_and_a_name_asks_for_one() -> None:
    Liveness("worker", "good", good_for_s=60).beat()
    Liveness("worker", "bad", good_for_s=60).beat("hungry")
    assert judge("worker") == (False, "worker bad: hungry")
    assert judge("worker", "good")[0]
    assert not judge("beat")[0]


@pytest.mark.test_all
def test_who_was_killed_is_passed_over_as_long_as_another_lives() -> None:
    written_by_somebody_who_died("dead")
    alone = judge("worker")
    Liveness("worker", "alive", good_for_s=60).beat()
    assert alone == (False, "worker dead: its process is gone")
    assert judge("worker")[0]
    assert not judge("worker", "dead")[0]


@pytest.mark.test_all
def test_the_database_belongs_to_nobody_and_outlives_who_asked_it(folder: Path) -> None:
    code = "from tasks_app.runtime.health_files import *; Liveness('db', good_for_s=60).beat()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert judge("db")[0]


def test_an_orderly_end_leaves_no_file(folder: Path) -> None:
    mine = Liveness("worker", "a/b", good_for_s=60)
    mine.beat()
    there = [path.name for path in folder.iterdir()]
    mine.end()
    mine.end()
    assert there == ["worker-a_b"]
    assert list(folder.iterdir()) == []


def test_a_file_from_before_a_restart_of_the_machine_is_stale(folder: Path) -> None:
    Liveness("worker", "a", good_for_s=60).beat()
    pid, at, rest = (folder / "worker-a").read_text().split(" ", 2)
    (folder / "worker-a").write_text(f"{pid} {float(at) + 1000} {rest}")  # the clock began anew
    assert not judge("worker")[0]


def test_what_cannot_be_read_is_no_sign_of_life(folder: Path) -> None:
    folder.mkdir()
    (folder / "worker-a").write_text("nonsense")
    (folder / "worker-b").mkdir()
    assert "no sign of life" in judge("worker")[1]


def test_a_full_disk_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(health_files.RUN_DIR_VARIABLE, str(tmp_path / "file" / "run"))
    Liveness("worker", "a", good_for_s=60).beat()
    assert not judge("worker")[0]


def test_without_a_folder_given_it_is_a_private_one_among_the_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ours_in(tmp_path, monkeypatch)
    Liveness("worker", "a", good_for_s=60).beat()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert judge("worker")[0]


def test_anothers_folder_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ours_in(tmp_path, monkeypatch)
    Liveness("worker", "a", good_for_s=60).beat()
    before = (folder / "worker-a").read_text()
    elsewhere = folder.rename(tmp_path / f"tasks_app-{os.getuid() + 1}")
    monkeypatch.setattr(health_files.os, "getuid", lambda: elsewhere.stat().st_uid + 1)
    Liveness("worker", "a", good_for_s=60).beat()
    assert (elsewhere / "worker-a").read_text() == before
    assert not judge("worker")[0]
    assert not judge("worker", "a")[0]


def ours_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(health_files.RUN_DIR_VARIABLE)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / f"tasks_app-{os.getuid()}"


ONE = "postgresql+psycopg://me:s3cret?x@db1:5432/shop"
HERE = ["postgres://other:pw@db1:5432/shop", "postgresql+psycopg://db1:5432/shop?sslmode=require"]
ELSEWHERE = [
    "postgresql+psycopg://me:s3cret@db1:5432/stock",
    "postgresql+psycopg://me:s3cret@db2:5432/shop",
    "postgresql+psycopg://me:s3cret@db1:5433/shop",
    "postgresql+psycopg:///shop?host=/run/one",
    "postgresql+psycopg:///shop?host=/run/two",
]


def of(monkeypatch: pytest.MonkeyPatch, url: str, schema: str = "") -> None:
    """Let the environment name this database."""
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", url)
    monkeypatch.setenv("TASKS_APP_SCHEMA", schema)


@pytest.mark.parametrize("other", [*ELSEWHERE, None])
def test_projects_do_not_see_each_other(monkeypatch: pytest.MonkeyPatch, other: str | None) -> None:
    of(monkeypatch, ONE)
    Liveness("worker", "a", good_for_s=60).beat()
    Liveness("beat", "a", good_for_s=60).beat("fails")

    of(monkeypatch, other or ONE, "" if other else "second")
    theirs = judge("worker"), judge("worker", "a"), judge("beat")
    Liveness("worker", "b", good_for_s=60).beat("hungry")
    of(monkeypatch, ONE)

    assert [good for good, _ in theirs] == [False] * 3
    assert all("no sign of life" in word for _, word in theirs)
    assert judge("worker")[0]
    assert judge("beat")[1] == "beat a: fails (db1:5432/shop)"


@pytest.mark.parametrize("url", HERE)
def test_another_role_or_options_see_the_same(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    of(monkeypatch, ONE)
    Liveness("worker", "a", good_for_s=60).beat()
    of(monkeypatch, url)
    assert judge("worker")[0]


def test_a_probe_that_knows_no_database_sees_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose worker was told of it by a script, and the probe was not."""
    of(monkeypatch, ONE)
    Liveness("worker", "a", good_for_s=60).beat()
    of(monkeypatch, "")
    assert judge("worker")[0]
    assert judge("worker", "a")[0]


@pytest.mark.parametrize(
    "url", [ONE, *HERE, *ELSEWHERE, "postgresql+psycopg://me:s3cret", "s3cret"]
)
def test_no_name_shows_a_password(monkeypatch: pytest.MonkeyPatch, url: str, folder: Path) -> None:
    of(monkeypatch, url)
    Liveness("worker", "a", good_for_s=60).beat()
    said = f"{judge('worker')} {judge('beat')} {[str(path) for path in folder.rglob('*')]}"
    assert judge("worker")[0]
    assert "s3cret" not in said
    assert "pw" not in said


def test_a_databases_name_with_control_characters_is_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of(monkeypatch, "postgresql+psycopg://db1:5432/shop\nalive\x1b[2J")
    health_files.probe("worker")
    assert capsys.readouterr().out.count("\n") == 1


URL = "postgresql+psycopg://me@db1:5432/{}"
LATER = time.time() + 2 * LONG_AGO_S


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(health_files.RUN_DIR_VARIABLE, str(tmp_path / "run"))
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", URL.format("mine"))
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def folder_of(name: str, role: str = "worker", *, ended: bool) -> Path:
    """Another project's folder; its process has ended, or is this one."""
    code = f"from tasks_app.runtime.health_files import *; Liveness({role!r}, 'a', good_for_s=60)"
    script = f"m = {code.partition('; ')[2]}; m.beat(); Liveness('db', good_for_s=60).beat()"
    other = {**os.environ, "TASKS_APP_DATABASE_URL": URL.format(name)}
    show = f"{code.partition('; ')[0]}; {script}; print(project_folder())"
    done = subprocess.run(
        [sys.executable, "-c", show], env=other, check=True, capture_output=True, text=True
    )
    folder = Path(done.stdout.strip())
    if not ended:
        mine = Liveness(role, "b", good_for_s=60)
        mine.beat()
        (Path(project_folder()) / f"{role}-b").rename(folder / f"{role}-b")
    return folder


@pytest.mark.usefixtures("base")
@pytest.mark.test_all
def test_a_folder_whose_processes_ended_long_ago_goes() -> None:
    gone, lives = folder_of("one", ended=True), folder_of("two", ended=False)
    remove_abandoned()
    soon = gone.exists()
    remove_abandoned(LATER)
    assert soon  # until then a probe says what became of the process
    assert not gone.exists()
    assert lives.exists()


def test_ones_own_folder_and_what_is_none_of_ours_stay(base: Path, tmp_path: Path) -> None:
    Liveness("worker", "a", good_for_s=60).beat()
    (base / "notes").mkdir()
    (base / "0123abcd").symlink_to(tmp_path)
    (base / "deadbeef").write_text("a file")
    remove_abandoned(LATER)
    assert Path(project_folder()).exists()
    assert {path.name for path in base.iterdir()} >= {"notes", "0123abcd", "deadbeef"}


@pytest.mark.usefixtures("base")
@pytest.mark.test_all
def test_a_folder_of_somebody_else_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = folder_of("one", ended=True)
    monkeypatch.setattr(os, "getuid", lambda: theirs.stat().st_uid + 1)
    remove_abandoned(LATER)
    assert theirs.exists()


@pytest.mark.test_all
def test_two_at_once_and_one_that_was_killed_over_it_do_no_harm(base: Path) -> None:
    gone = [folder_of(f"db{number}", ended=True) for number in range(5)]
    (base / "taken-1-0123abcd").mkdir()
    code = "from tasks_app.runtime.worker.supervisor import *; remove_abandoned({})"
    both = [subprocess.Popen([sys.executable, "-c", code.format(LATER)]) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert not any(folder.exists() for folder in gone)
    assert list(base.glob("taken-*")) == []


@pytest.mark.usefixtures("base")
@pytest.mark.test_all
def test_who_starts_in_a_folder_just_removed_makes_it_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = folder_of("one", ended=True)
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", URL.format("one"))
    mine = Liveness("worker", "c", good_for_s=60)
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", URL.format("mine"))
    remove_abandoned(LATER)
    removed = not gone.exists()
    mine.beat()
    assert removed
    assert [path.name for path in gone.iterdir()] == ["worker-c"]
