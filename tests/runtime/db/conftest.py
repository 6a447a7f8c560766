"""These tests are about connections: none is kept warm."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _cold(cold_connections: None) -> None:
    """Each connection is one of its own."""
