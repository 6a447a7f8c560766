"""Faults that a test orders for the next runs of a handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tasks_app.domain.handlers.spec import Handler
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.middleware import Middleware
from tasks_app.testing.results import name_of

When = Literal["before", "after"]


def fail_next(
    task: Handler[Any, Any] | str,
    error: BaseException | type[BaseException],
    *,
    times: int = 1,
    when: When = "after",
) -> None:
    """Let the next run of this name raise ``error``, in a drain.

    ``after``: when its handler has returned, so that all it did outside of its transaction is done;
    ``before``: instead of its handler. The task is retried, or fails, as its handler declares.

    >>> fail_next("mail.send", ConnectionResetError)
    >>> len(drain(session).of("mail.send").waiting)
    1
    """
    _order(task, error() if isinstance(error, type) else error, times, when)


def crash_next(task: Handler[Any, Any] | str, *, times: int = 1, when: When = "after") -> None:
    """Let the next run of this name end as if its process had died before the COMMIT, in a drain.

    What it wrote through ``ctx.session`` is gone, what it did elsewhere is done. The task is
    rescued, as when a machine vanishes, and comes back at once: nobody is charged, and after
    ``max_crashes`` (5) it fails. An ``at_most_once`` task fails with "outcome unknown".

    >>> crash_next(send_mail)
    >>> len(drain(session).assert_succeeded().runs)
    2
    """
    _order(task, None, times, when)


@dataclass(frozen=True, slots=True)
class OrderedFault:
    """What is to happen to one run."""

    name: str
    error: BaseException | None
    """None: a crash."""
    when: When


class CrashOrdered(BaseException):
    """The process of the run has died."""


FAULTS: list[OrderedFault] = []
"""Those that have hit no run yet; the plugin of pytest clears them after each test."""


def _order(
    task: Handler[Any, Any] | str, error: BaseException | None, times: int, when: When
) -> None:
    if when not in {"before", "after"}:
        raise ValueError(f"when is {when!r}. Allowed: before, after.")
    FAULTS.extend([OrderedFault(name_of(task), error, when)] * times)


def layer(on_crash: Callable[[TaskContext], object] = lambda _: None) -> Middleware:
    """Return what surrounds each run of a drain; ``on_crash`` is called before the run ends."""

    def faulty(context: TaskContext, call: Callable[[], Any]) -> Any:
        fault = next((each for each in FAULTS if each.name == context.name), None)
        if fault is None:
            return call()
        FAULTS.remove(fault)
        if fault.when == "after":
            call()
        if fault.error is not None:
            raise fault.error
        on_crash(context)
        raise CrashOrdered

    return faulty
