"""How much is fuzzed, and from which seed: ``make fuzz`` does 10,000, ``make test`` a slice."""

from __future__ import annotations

import os
import random

import pytest

from tests.broker.conftest import free_port, house  # noqa: F401  the same house

COUNT = int(os.environ.get("FUZZ_COUNT", "300"))
SEED = int(os.environ.get("FUZZ_SEED") or random.SystemRandom().randrange(10**6))


def pytest_report_header() -> str:
    return f"fuzz: FUZZ_COUNT={COUNT} FUZZ_SEED={SEED}"


@pytest.fixture(scope="session")
def count() -> int:
    """How many messages, and how many payloads."""
    return COUNT


@pytest.fixture
def dice() -> random.Random:
    """The same throws for the same seed; it is printed where a test fails."""
    print(f"replay with: make fuzz COUNT={COUNT} SEED={SEED}")
    return random.Random(SEED)
