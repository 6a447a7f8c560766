"""A plugin for pytest: what failed, for which reason, and whose code was on trial.

``WITNESS_TREE`` is the copy, ``WITNESS_FILES`` are the files that the mutant changed. Its word is
written as JSON to ``WITNESS_SAYS``.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_failures: list[dict[str, str]] = []
_passed: list[str] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how each test ended."""
    report = yield
    if report.failed and call.excinfo is not None:
        kind = call.excinfo.type.__name__
        _failures.append({"test": item.nodeid, "phase": report.when, "kind": kind})
    elif report.when == "call" and report.passed:
        _passed.append(item.nodeid)
    return report


def pytest_sessionfinish() -> None:
    """Write it all down, with the modules that this process really imported."""
    tree = Path(os.environ["WITNESS_TREE"])
    strangers = []
    for file in json.loads(os.environ["WITNESS_FILES"]):
        if not file.endswith(".py"):
            continue  # SQL lies beside the code that runs it
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        if Path(str(module.__file__)) != tree / file:
            strangers.append(str(module.__file__))
    says = {"failures": _failures, "passed": _passed, "strangers": strangers}
    Path(os.environ["WITNESS_SAYS"]).write_text(json.dumps(says))
