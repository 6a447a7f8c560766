"""Real PostgreSQL and real Valkey from wheels, in one folder, without Docker, apt or root.

One process owns a folder's servers: ``Stack`` (or ``temporary``, for tests) in your own process,
``up`` for a supervisor in the background; all others ask ``read_urls``. The code that runs servers
is imported on first use: it needs psutil, which comes with the extra.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tasks_app.embedded.errors import AlreadyOwnedError, EmbeddedError
from tasks_app.embedded.home import DEFAULT_FOLDER
from tasks_app.embedded.state import StackState as State
from tasks_app.embedded.state import Started, Urls, read_state, read_urls

if TYPE_CHECKING:
    from tasks_app.embedded.detached import down, up
    from tasks_app.embedded.servers.postgres import Postgres
    from tasks_app.embedded.servers.valkey import Valkey
    from tasks_app.embedded.stack import Stack, temporary
    from tasks_app.embedded.supervisor import supervise

__all__ = [
    "DEFAULT_FOLDER",
    "AlreadyOwnedError",
    "EmbeddedError",
    "Postgres",
    "Stack",
    "Started",
    "State",
    "Urls",
    "Valkey",
    "down",
    "read_state",
    "read_urls",
    "supervise",
    "temporary",
    "up",
]

_ROOMS = {
    "Postgres": "servers.postgres",
    "Stack": "stack",
    "Valkey": "servers.valkey",
    "down": "detached",
    "supervise": "supervisor",
    "temporary": "stack",
    "up": "detached",
}

if not TYPE_CHECKING:  # type checkers would let every misspelt name pass

    def __getattr__(name: str) -> object:
        """Import the code that runs servers on first use."""
        if name not in _ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
        globals()[name] = value
        return value
