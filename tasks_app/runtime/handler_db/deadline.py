"""A deadline for what is asked of the server."""

from __future__ import annotations

import time
from typing import TypeVar

from psycopg import errors

from tasks_app.runtime.handler_db.ends import Steps

T = TypeVar("T")


def in_time(steps: Steps[T], patience_s: float) -> Steps[T]:
    """Carry out steps that are to be over in time.

    Those that are late get an error where they wait, and end their connection. The server notices
    that by ``client_connection_check_interval``. psycopg asks ten times a second, so it is later
    than it was to be by up to 0.1 s.

    Raises:
        psycopg.OperationalError: they were late.
    """
    ends = time.monotonic() + patience_s
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            late = not ready and time.monotonic() >= ends
            wanted = steps.throw(_late(patience_s)) if late else steps.send(ready)
    except StopIteration as end:
        done: T = end.value
        return done


def _late(patience_s: float) -> errors.OperationalError:
    return errors.OperationalError(f"The server did not answer within {patience_s:g} s.")
