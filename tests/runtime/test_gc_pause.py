"""Imports leave little garbage: a start need not look for it again and again."""

from __future__ import annotations

import subprocess
import sys

import pytest

WATCHED = """
import gc
collected = []
gc.callbacks.append(lambda phase, about: collected.append(about["generation"]))
{start}
assert gc.isenabled()
print(collected.count(2))
"""
APP = "import tasks_app.celery"
WORK = "from tasks_app.cli.group import group; group.get_command(None, 'work')"


@pytest.mark.test_all
@pytest.mark.parametrize("start", [APP, WORK], ids=["celery", "work"])
def test_a_start_walks_through_all_objects_not_once(start: str) -> None:
    asked = [sys.executable, "-c", WATCHED.format(start=start)]

    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout

    assert int(said) == 0
