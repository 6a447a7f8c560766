"""Messages of other pools on the same broker: they are refused, counted and logged.

Taking one would start our tasks of the same numbers, and leave its own waiting; putting it back
would pass it from worker to worker without end. Its pool publishes it again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.pool_name import pool_name
from tasks_app.runtime.scoreboard.location import SLOTS_VARIABLE
from tasks_app.runtime.worker.control_inbox import ControlCommand, Do, Mailbox

log = quiet_logger(__name__)

HEADER = "pool"
POOL_VARIABLE = "TASKS_APP_POOL"
"""How a worker's parent or a beat, which asked the database, tells it to the rest of its process
and to its children."""
SAID_EVERY_S = 60.0


def own_name() -> str | None:
    """Return the name of the pool that this process serves; None: unknown, or the pool has none."""
    return os.environ.get(POOL_VARIABLE) or None


def learn_own_name(connection: Connection) -> None:
    os.environ[POOL_VARIABLE] = pool_name(connection) or ""


class Strangers:
    """What one worker's parent has refused."""

    def __init__(self) -> None:
        self.number = 0
        self._said = 0
        self._say_at = 0.0

    def refuses(self, headers: Mapping[str, Any]) -> bool:
        """Say whether the message names another pool; older versions name none."""
        named, own = headers.get(HEADER), own_name()
        if named is None or own is None or named == own:
            return False
        self.number += 1
        if time.monotonic() >= self._say_at:
            self._say_at = time.monotonic() + SAID_EVERY_S
            self._say(self.number - self._said)
            self._said = self.number
        return True

    def _say(self, number: int) -> None:
        log.warning(
            "refused %s messages of another pool (%s in all): two pools share this broker, and "
            "each waits for what the other's workers take. Give each a database of Redis, a "
            "global_keyprefix or a virtual host of its own.",
            number,
            self.number,
        )
        if SLOTS_VARIABLE in os.environ:  # a child writes it down for doctor
            slots = Path(os.environ[SLOTS_VARIABLE])
            with suppress(OSError):  # Celery would take it for the loss of the connection
                Mailbox.beside(slots).leave(ControlCommand(Do.COUNT_STRANGERS, ids=(number,)))
