"""The long proofs of the Celery edge: minutes, many kills. `make test-all` runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.torture.rabbit_node import Node
from tests.broker.conftest import _clean, alone, free_port, house, rabbitmq  # noqa: F401
from tests.broker.side_by_side import backend, sample  # noqa: F401  the same project
from tests.django.django_shop import shop  # noqa: F401  the same project
from tests.runtime.conftest import bench  # noqa: F401  the same workbench

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """RabbitMQ of a module's own: faults of a whole server stop no other tests."""
    with Node() as node:
        yield node


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.test_all)
