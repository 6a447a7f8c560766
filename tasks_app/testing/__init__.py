"""Floor 4, for users' tests, on a real database. No Celery.

Importing this package imports nothing else, as the front door: pytest loads its plugin at each
start.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    # isort: off
    # fmt: off
    from tasks_app.testing.creation import (
        Where, aassert_created, acreated, assert_created, created,
    )
    from tasks_app.testing.databases import empty_pool
    from tasks_app.testing.draining import adrain, atravel, drain, travel
    from tasks_app.testing.draining import crash_next
    from tasks_app.testing.draining import fail_next
    from tasks_app.testing.flows import aassert_flow, assert_flow
    from tasks_app.testing.handler_call import ContextOptions, arun, make_context, run
    from tasks_app.testing.mixin import TasksTestMixin
    from tasks_app.testing.results import Drained, TaskRun
    # fmt: on
    # isort: on

__all__ = [
    "ContextOptions", "Drained", "TaskRun", "TasksTestMixin", "Where", "aassert_created",
    "aassert_flow", "acreated", "adrain", "arun", "assert_created", "assert_flow", "atravel",
    "crash_next", "created", "drain", "empty_pool", "fail_next", "make_context", "run", "travel",
]  # fmt: skip

_ROOMS = {
    "creation": "Where aassert_created acreated assert_created created",
    "databases": "empty_pool",
    "draining": "adrain atravel crash_next drain fail_next travel",
    "flows": "aassert_flow assert_flow",
    "handler_call": "ContextOptions arun make_context run",
    "mixin": "TasksTestMixin",
    "results": "Drained TaskRun",
}
"""The imports above, for the running program."""
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}

if not TYPE_CHECKING:  # type checkers would let every misspelt name pass

    def __getattr__(name: str) -> object:
        """Fetch a public name from its module, once."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415  not before a name is wanted

        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """List the names that are not fetched yet, too."""
        return sorted({*globals(), *__all__})
