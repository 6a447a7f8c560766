"""Load gates of queues are opened and shut, and the log says so."""

from __future__ import annotations

from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.flow_control.load_gate import look_at_gates
from tasks_app.runtime.db.database import Database

log = quiet_logger(__name__)


class LoadGates:
    """Of one scanner; any number may look at once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def look(self) -> None:
        """Compare what runs and waits with what each gate allows."""
        with self._database.single() as connection:
            changed = look_at_gates(connection)
        for queue, why in changed.items():
            log.info(
                "the gate of queue %s is %s", queue, f"shut: others are {why}" if why else "open"
            )
