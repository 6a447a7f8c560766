"""The composition root of a worker without a broker."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.exc import OperationalError

from tasks_app.domain.config.setting_sources import unknown_variables
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.explain.words import count
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.runtime.flow_control.breakers import bring_in_breakers
from tasks_app.runtime.handler_db.driver_internals import said_at_start
from tasks_app.runtime.handlers.middleware import Middleware, load_middleware
from tasks_app.runtime.handlers.registry import HANDLERS, Registry
from tasks_app.runtime.schedules.declared import bring_in_schedules
from tasks_app.runtime.scoreboard.location import slot_file
from tasks_app.runtime.scoreboard.scoreboard import Scoreboard
from tasks_app.runtime.worker.child import Child
from tasks_app.runtime.worker.signals import heed_signals, heed_signals_of_child
from tasks_app.runtime.worker.standalone import StandaloneWorker

log = quiet_logger(__name__)


def run_work(  # noqa: PLR0913  what the command line and tests may choose
    settings: Settings,
    *,
    registry: Registry = HANDLERS,
    queues: Sequence[str] = (),
    threads: int = 1,
    drain: bool = False,
    middleware: Sequence[Middleware] | None = None,
    slots: Scoreboard | None = None,
    handle_signals: bool = False,
) -> None:
    """Run tasks in this process until it is told to stop; with ``drain``, until nothing is due.

    Handlers run in this thread and ``threads - 1`` others. ``queues`` empty: ``default`` and those
    of the handlers. With ``handle_signals``, SIGTERM and SIGINT end it after the running tasks;
    what has not started goes back. A second one, or SIGQUIT, lets go of what runs.
    """
    for sentence in said_at_start():
        log.warning(sentence)
    for finding in unknown_variables():
        log.warning("%s. %s", finding.fact, finding.advice)
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
        heed_signals_of_child(child.inflight)
    try:
        bring_in_schedules(child.database, registry)
        bring_in_breakers(child.database, registry)
    except BaseException:
        child.slot.free()  # or the parent would take us for killed, and start another
        raise
    child.start()
    log.info("ready: %s; queues: %s", count(len(registry.names), "handler"), ", ".join(served))
    try:
        StandaloneWorker(settings, child, served, set(registry.names)).run(drain=drain)
    except OperationalError:  # it gave up, and holds nothing
        child.stop()
        child.slot.free()  # even if its last writes were not answered: or it would be replaced
        raise
    finally:
        child.stop()
        child.retire_if_unfit()
