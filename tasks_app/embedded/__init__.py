"""Real PostgreSQL and real Valkey from wheels, in one folder, without Docker, apt or root.

One process owns a folder's servers: ``Stack`` (or ``temporary``, for tests) in your own
process, ``up`` for a supervisor in the background; all others ask ``read_urls``.
"""

from __future__ import annotations

from tasks_app.embedded.detached import down, up
from tasks_app.embedded.errors import AlreadyOwnedError, EmbeddedError
from tasks_app.embedded.home import DEFAULT_FOLDER
from tasks_app.embedded.postgres import Postgres
from tasks_app.embedded.stack import Stack
from tasks_app.embedded.started import Started
from tasks_app.embedded.state import State, Urls, read_state, read_urls
from tasks_app.embedded.supervisor import supervise
from tasks_app.embedded.temporary import temporary
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
