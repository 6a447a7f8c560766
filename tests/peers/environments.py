"""The systems that the guides lead away from, each in an environment of its own."""

from __future__ import annotations

import fcntl
import re
import sysconfig
from pathlib import Path

import pytest

from dev.benchmarks.environments import FOLDER, PEERS, MissingError, Virtual
from tests.releases import NO_PEER

HERE = Path(__file__).parent
PINS = {
    "rq": HERE / "rq",
    "procrastinate": PEERS / "procrastinate",
    "pgqueuer": PEERS / "pgqueuer",
    "django-celery-outbox": HERE / "django_celery_outbox",
}


def version_of(package: str) -> str:
    """The one that is pinned, and so the one that the guide is about."""
    pins = (PINS[package] / "requirements.txt").read_text()
    [version] = re.findall(rf"^{package}==([\d.]+)", pins, re.MULTILINE)
    return version


def programs_of(package: str) -> Path:
    """The folder of its programs, Python among them; skips where it cannot be had."""
    environment = Virtual(PINS[package].name, (package,), PINS[package])
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # files of tests run side by side
        try:
            environment.ensure()
        except MissingError as missing:
            pytest.skip(f"{NO_PEER}: {missing}")
    return environment.folder / "bin"


def both(*folders: Path) -> str:
    """PYTHONPATH of a project that has our package beside theirs."""
    ours = sysconfig.get_path("purelib")
    return ":".join([*map(str, folders), str(HERE.parents[1]), ours])
