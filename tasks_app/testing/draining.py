"""Drain: run what is due, in this process."""

from __future__ import annotations

from collections.abc import Sequence

from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.domain.errors import ConfigurationError
from tasks_app.runtime.db.connections import shown
from tasks_app.runtime.handlers.registry import HANDLERS, Registry
from tasks_app.runtime.worker.assembly import run_work


def drain(
    settings: Settings | None = None,
    *,
    registry: Registry = HANDLERS,
    queues: Sequence[str] = (),
) -> None:
    """Run due tasks until none is left; it does not wait for later retries.

    The tasks must be committed: this uses connections of its own. Settings come from the
    environment unless given.

    Raises:
        ConfigurationError: ``settings`` are none, or a setting is wrong.
    """
    if not isinstance(settings, Settings | None):
        raise ConfigurationError(
            f"{shown(settings)} is no Settings. Pass Settings(database_url=…), or nothing: then "
            "they come from the environment."
        )
    run_work(settings or load_settings(), registry=registry, queues=queues, drain=True)
