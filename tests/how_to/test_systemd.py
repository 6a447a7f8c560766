"""The guide to systemd, compared with the units that it installs."""

from __future__ import annotations

import re

from tasks_app.domain.config.settings import Settings
from tests.docs.reading import PROJECT, blocks
from tests.how_to.pages import page

UNITS = {path.name: path.read_text() for path in (PROJECT / "deploy/systemd").iterdir()}
PAGE = page("systemd")
FILES = {
    block.split(":")[0].removeprefix("# "): re.findall(r"^(\w+)=", block, re.MULTILINE)
    for block in blocks(PAGE, "ini")
}
SHELL = "\n".join(blocks(PAGE, "bash"))


def said(name: str, unit: str = "tasks-app-worker@.service") -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNITS[unit], re.MULTILINE)


def test_it_writes_the_files_that_the_units_read() -> None:
    read = {file for unit in UNITS for file in said("EnvironmentFile", unit)}
    assert FILES.keys() == read


def test_its_variables_are_settings() -> None:
    known = {f"TASKS_APP_{name.upper()}" for name in Settings.model_fields} | {"PYTHONPATH"}
    assert {name for names in FILES.values() for name in names} <= known


def test_it_starts_every_unit_where_the_units_are() -> None:
    (enabled,) = re.findall(r"^systemctl enable --now (.*)$", SHELL, re.MULTILINE)
    units = {re.sub(r"@\w+", "@", name) + ".service" for name in enabled.split()}
    assert units == UNITS.keys()
    assert all(said("WorkingDirectory", unit) == ["/srv/tasks_app"] for unit in UNITS)
    assert all(said("ExecStart", unit)[0].startswith("/srv/tasks_app/.venv/bin/") for unit in UNITS)


def test_what_it_says_of_the_end_is_in_the_worker() -> None:
    assert said("User") == ["tasks-app"]
    assert "TASKS_APP_STOP_GRACE=100s" in said("Environment")
    assert f"for {100} s (`TASKS_APP_STOP_GRACE`)" in PAGE
    assert said("TimeoutStopSec") == ["120"]
    assert "120 s (`TimeoutStopSec`)" in PAGE
    assert said("RestartSec") == ["5"]
    assert said("KillMode") == ["mixed"]
    (folder,) = re.findall(r"TASKS_APP_RUN_DIR=(\S+)-one ", SHELL)
    assert f"TASKS_APP_RUN_DIR={folder}-%i" in said("Environment")
