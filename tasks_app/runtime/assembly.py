"""The composition root of a worker without a broker."""

from __future__ import annotations

from collections.abc import Sequence

from tasks_app.domain.logs import quiet_logger
from tasks_app.domain.settings import Settings
from tasks_app.runtime.breakers import bring_in_breakers
from tasks_app.runtime.child import Child
from tasks_app.runtime.declared import bring_in_schedules
from tasks_app.runtime.driver_internals import said_at_start
from tasks_app.runtime.middleware import Middleware, load_middleware
from tasks_app.runtime.registry import HANDLERS, Registry
from tasks_app.runtime.signals import heed_signals, heed_signals_of_child
from tasks_app.runtime.slot import SlotFile
from tasks_app.runtime.slot_folder import slot_file
from tasks_app.runtime.work import Work

log = quiet_logger(__name__)


def run_work(  # noqa: PLR0913  what the command line and tests may choose
    settings: Settings,
    *,
    registry: Registry = HANDLERS,
    queues: Sequence[str] = (),
    threads: int = 1,
    drain: bool = False,
    middleware: Sequence[Middleware] | None = None,
    slots: SlotFile | None = None,
    handle_signals: bool = False,
) -> None:
    """Run tasks in this process until it is told to stop; with ``drain``, until nothing is due.

    Handlers run in this thread and ``threads - 1`` others. ``queues`` empty: ``default`` and those
    of the handlers. With ``handle_signals``, SIGTERM and SIGINT end it after the running tasks;
    what has not started goes back. A second one, or SIGQUIT, lets go of what runs.
    """
    for sentence in said_at_start():
        log.warning(sentence)
    slots = slots or slot_file()
    served = tuple(queues) or registry.queues
    child = Child(
        settings,
        registry,
        slots,
        queues=served,
        middleware=load_middleware(settings.layers) if middleware is None else middleware,
        extra_threads=threads - 1,
    )
    if handle_signals and child.identity.parent is None:
        heed_signals(slots)
    elif handle_signals:
        heed_signals_of_child(child.desk)
    bring_in_schedules(child.database, registry)
    bring_in_breakers(child.database, registry)
    child.start()
    log.info("ready: %s handlers, queues %s", len(registry.names), ", ".join(served))
    try:
        Work(settings, child, served, set(registry.names)).run(drain=drain)
    finally:
        child.stop()
        child.retire_if_unfit()
