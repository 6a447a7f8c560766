"""The consumer of a worker: it goes on watching while it waits for a broker.

Celery connects again in a loop of its own, and no timer fires meanwhile: for as long as the broker
is away, nobody would kill what runs past its hard limit, and probes would call the worker dead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amqp.exceptions import PreconditionFailed
from celery.exceptions import WorkerShutdown
from celery.worker.consumer import Consumer

from tasks_app.domain.logs import quiet_logger

log = quiet_logger(__name__)

_DELAYS = "celery.worker.consumer.delayed_delivery:DelayedDelivery"


class PatientConsumer(Consumer):
    """Celery's consumer otherwise."""

    def ensure_connected(self, conn: Any) -> Any:
        """Connect, however long it takes; kombu calls back every second."""
        attempt = conn.ensure_connection

        def watchful(errback: Any, max_retries: Any, callback: Callable[[], None]) -> Any:
            def each_second() -> None:
                self.controller.watch()
                callback()

            return attempt(errback, max_retries, callback=each_second)

        conn.ensure_connection = watchful
        return super().ensure_connected(conn)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Let go of the lost connection, whatever kombu trips over while it closes it.

        Seen with Redis: a channel that was collected wants to give messages back at its close, and
        raises AttributeError, which ended the worker.
        """
        try:
            super().on_connection_error_after_connected(exc)
        except Exception as error:
            if self.connection is not None:  # not yet let go: this came from elsewhere
                raise
            log.warning("the lost connection did not close in order: %s", type(error).__name__)


class RabbitConsumer(PatientConsumer):
    """The same on RabbitMQ: without Celery's queues for delays, and with a clear last word.

    Our due times stand in the database, so 28 queues for delays would stand empty. Who sends own
    Celery tasks with a countdown over quorum queues sets ``worker_consumer`` back to
    ``tasks_app.broker.consumer:PatientConsumer``.
    """

    class Blueprint(Consumer.Blueprint):
        """The same steps without that one."""

        default_steps = tuple(step for step in Consumer.Blueprint.default_steps if step != _DELAYS)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """End where trying again is useless: somebody else's queue has our queue's name."""
        if isinstance(exc, PreconditionFailed) and "inequivalent arg" in str(exc):
            log.critical(
                "A queue of ours exists with other arguments: %s. Give tasks_app a virtual host of "
                "its own, or delete that queue.",
                exc.reply_text,
            )
            raise WorkerShutdown(1) from None
        super().on_connection_error_after_connected(exc)
