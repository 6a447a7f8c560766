"""Celery's consumer on RabbitMQ: without its queues for delays, and with a clear last word."""

from __future__ import annotations

import logging

from amqp.exceptions import PreconditionFailed
from celery.exceptions import WorkerShutdown
from celery.worker.consumer import Consumer

log = logging.getLogger(__name__)

_DELAYS = "celery.worker.consumer.delayed_delivery:DelayedDelivery"


class RabbitConsumer(Consumer):
    """Our due times stand in the database, so 28 queues for delays would stand empty.

    Who sends own Celery tasks with a countdown over quorum queues sets ``worker_consumer`` back to
    ``celery.worker.consumer:Consumer``.
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
