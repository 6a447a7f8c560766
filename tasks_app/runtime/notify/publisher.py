"""Sends hints by NOTIFY, in transactions of its own: a producer's would commit one after another.

It says which queue has work, not which tasks: who listens claims from the pool.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks_app.domain.config.settings import Settings
from tasks_app.pool.dispatch.notifications import notify
from tasks_app.runtime.db.database import Database


class NotifyHints:
    """A :class:`HintPublisher`. It connects when first used, and keeps one connection."""

    def __init__(self, settings: Settings) -> None:
        self._database = Database(settings.database, prepare=settings.prepare)

    def publish(self, queue: str, ids: Sequence[int]) -> None:  # noqa: ARG002  a broker's wants them
        with self._database.single() as connection:
            notify(connection, queue)

    def start(self, queue: str, ids: Sequence[int]) -> bool:  # noqa: ARG002
        return False

    def finish(self) -> None:
        """Nothing is ever started."""

    def depth(self, queue: str) -> int:  # noqa: ARG002
        """Return 0: notices do not pile up in front of those who are busy."""
        return 0
