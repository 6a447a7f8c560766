"""Run everything that is due, here and now."""

from __future__ import annotations

from collections.abc import Sequence

from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.runtime.handlers.registry import HANDLERS, Registry
from tasks_app.runtime.worker.assembly import run_work


def drain(
    settings: Settings | None = None,
    *,
    registry: Registry = HANDLERS,
    queues: Sequence[str] = (),
) -> None:
    """Run due tasks until none is left; retries that are due later are not waited for.

    The tasks must be committed: this uses connections of its own. Settings come from the
    environment unless given.
    """
    run_work(settings or load_settings(), registry=registry, queues=queues, drain=True)
