"""Private names of psycopg and SQLAlchemy that we use; each is checked before it is used.

A run's connection overrides what psycopg calls (``ends``, ``handler_driver``,
``handler_connections``), and is one of many objects that share a session (``lending``). If psycopg
differs from what we know, each run gets a session of its own, in which nothing stays prepared:
slower, and as safe.
"""

from __future__ import annotations

from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.finding import Finding, PrivateApi, Used, startup_notices, version_findings

_CONNECTION = "psycopg:Connection"

SHARED_SESSIONS = PrivateApi(
    Used(f"{_CONNECTION}.__init__", ("self", "pgconn")),
    Used(f"{_CONNECTION}._deallocate", ("self", "name")),
    Used("psycopg._preparing:PrepareManager.maintain_gen", names=("_deallocate",)),
    without="each run that writes opens a session of its own, which costs milliseconds",
)
"""One session for many runs, with what ends them prepared."""
LATE_WRITES = PrivateApi(
    Used("psycopg._queries:PostgresQuery.__init__", ("self", "transformer")),
    Used("psycopg._queries:PostgresQuery.convert", ("self", "query", "vars")),
    without="what handlers write by ctx.write waits for the database once more",
)
"""``late_writes``."""
BELOW = PrivateApi(
    Used("sqlalchemy:Connection.__init__", names=("_has_events", "_echo")),
    without="create_task passes through SQLAlchemy's own layers, a quarter slower",
)
"""``create_task`` on psycopg itself (``pool.connection``), where SQLAlchemy has no listeners."""
LIMITS = PrivateApi(
    Used("sqlalchemy:Select._limit_clause"),
    Used("sqlalchemy:Select._offset_clause"),
    without="ctx.chunks does not refuse a statement with a LIMIT",
)
"""``pool.tasks.paging``."""
SHORTCUTS = (SHARED_SESSIONS, LATE_WRITES, BELOW, LIMITS)

_NEEDED = PrivateApi(
    Used(f"{_CONNECTION}.__init__", names=("lock",)),
    Used(f"{_CONNECTION}.wait", ("self", "gen")),
    Used(f"{_CONNECTION}.commit", names=("lock", "wait")),
    Used(f"{_CONNECTION}._start_query", ("self",)),
    Used("psycopg._cursor_base:BaseCursor._start_query", names=("_start_query",)),
    Used("psycopg.waiting:wait_async", ("gen", "fileno")),
    Used("psycopg._connection_base:BaseConnection.__init__", names=("_adapters",)),
    Used("psycopg.generators:execute"),
    Used("psycopg.generators:fetch_many"),
    Used("psycopg.generators:send"),
    without="what handlers write could not be kept apart",
)
"""By these we see, and refuse, what ends a run's transaction. There is no other way."""


def examine() -> list[Finding]:
    return version_findings("drivers", SHORTCUTS)


def notices_at_start() -> list[str]:
    return startup_notices(SHORTCUTS)


if not _NEEDED.works:
    raise ConfigurationError(f"{_NEEDED.fact}. {_NEEDED.advice}")

from psycopg import Cursor  # noqa: E402  they are checked before
from psycopg import generators as generators  # noqa: E402, PLC0414

IS_PSYCOPG_3_2 = not hasattr(Cursor, "set_result")
"""Its series is closed, so that private names of it stay as they are."""
