"""A table of rows to do, and jobs on the workbench."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.batch.yard import Yard
from tests.runtime.bench import Bench
from tests.runtime.conftest import bench  # noqa: F401  the same workbench


@pytest.fixture
def yard(engine: Engine, bench: Bench) -> Iterator[Yard]:  # noqa: F811  the fixture
    """Rows to do, and who does them."""
    yard = Yard(engine, bench)
    yield yard
    yard.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
