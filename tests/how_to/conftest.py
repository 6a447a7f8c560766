"""The code of a guide, loaded from its page, and a transaction in which it is tried."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tasks_app.batch.job import JOBS
from tasks_app.runtime.handlers.middleware import MIDDLEWARE
from tasks_app.runtime.handlers.registry import HANDLERS
from tests.how_to.pages import files
from tests.testing.conftest import session

__all__ = ["session"]

Load = Callable[[str], Any]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """Import ``page/file.py``; afterwards its handlers, schedules and jobs are unknown again."""
    known = [(each, dict(each)) for each in (HANDLERS.specs, HANDLERS.schedules, JOBS)]
    before, layers = set(sys.modules), [*MIDDLEWARE]

    def import_block(name: str) -> ModuleType:
        page, _, file = name.partition("/")
        path = Path(tmp_path_factory.mktemp(page)) / file
        path.write_text(files(page)[file])
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        assert path.stem not in before
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module

    yield import_block
    for each, as_it_was in known:
        each.clear()
        each.update(as_it_was)
    MIDDLEWARE[:] = layers
    for name in set(sys.modules) - before:
        base = str(tmp_path_factory.getbasetemp())
        if str(getattr(sys.modules[name], "__file__", "")).startswith(base):
            del sys.modules[name]
