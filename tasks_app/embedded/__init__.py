"""Real PostgreSQL and real Valkey from wheels, in one folder, without Docker, apt or root.

One process owns a folder's servers: ``Stack`` (or ``temporary``, for tests) in your own
process, ``up`` for a supervisor in the background; all others ask ``read_urls``. What runs servers
is imported when it is wanted: it needs psutil, which comes with the extra.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tasks_app.embedded.errors import AlreadyOwnedError, EmbeddedError
from tasks_app.embedded.home import DEFAULT_FOLDER
from tasks_app.embedded.started import Started
from tasks_app.embedded.state import State, Urls, read_state, read_urls

if TYPE_CHECKING:
    from tasks_app.embedded.detached import down, up
    from tasks_app.embedded.postgres import Postgres
    from tasks_app.embedded.stack import Stack
    from tasks_app.embedded.supervisor import supervise
    from tasks_app.embedded.temporary_stack import temporary
    from tasks_app.embedded.valkey import Valkey

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
    "Postgres": "postgres",
    "Stack": "stack",
    "Valkey": "valkey",
    "down": "detached",
    "supervise": "supervisor",
    "temporary": "temporary_stack",
    "up": "detached",
}

if not TYPE_CHECKING:  # or every misspelt name would pass its checks

    def __getattr__(name: str) -> object:
        """Import what runs servers when it is first wanted."""
        if name not in _ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
        globals()[name] = value
        return value
