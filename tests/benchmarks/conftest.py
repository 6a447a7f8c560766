"""Where tests measure: on databases of their own."""

from __future__ import annotations

import pytest

from dev.benchmarks.servers import Servers
from dev.benchmarks.stage import Stage
from tasks_app.embedded.stack import Stack


@pytest.fixture
def stage(stack: Stack) -> Stage:
    """Without the databases of other tests, whose names would be taken again."""
    servers = Servers(stack)
    for (name,) in servers.ask("SELECT datname FROM pg_database WHERE datname LIKE 'bench_%'"):
        servers.drop(name)
    return Stage(servers)
