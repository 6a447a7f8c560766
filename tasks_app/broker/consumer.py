"""The consumer of a worker: it goes on watching while it waits for a broker, whatever it reads.

Celery connects again in a loop of its own, and no timer fires meanwhile: for as long as the broker
is away, nobody would kill what runs past its hard limit, and probes would call the worker dead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amqp.exceptions import PreconditionFailed
from celery.exceptions import InvalidTaskError, WorkerShutdown
from celery.worker.consumer import Consumer
from kombu.exceptions import KombuError

from tasks_app.domain.safe_logging import quiet_logger

log = quiet_logger(__name__)

UNREADABLE = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError),
    KombuError,
)
"""What Celery raises over a message with odd headers; it would end the worker."""
AGAIN = {"interval_start": 1, "interval_step": 1, "interval_max": 2}
"""Seconds between two tries. Celery's grow to 30, by which all work would wait longer than need be
for a broker that is back."""
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

            return attempt(errback, max_retries, **AGAIN, callback=each_second)

        conn.ensure_connection = watchful
        return super().ensure_connected(conn)

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        """Refuse what Celery stumbles over: a message that is not let go holds its place."""
        handle = super().create_task_handler(*args, **options)

        def careful(message: Any) -> Any:
            try:
                return handle(message)
            except self.connection_errors:
                raise
            except UNREADABLE as error:
                return self._refuse(message, error)

        return careful

    # Celery shows the message in its log, and some bodies make that raise.

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Refuse what is not encoded as it says."""
        self._refuse(message, exc)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:  # noqa: ARG002
        """Refuse what has a header or a content type that is wrong."""
        self._refuse(message, exc)

    def on_unknown_message(self, body: Any, message: Any) -> None:  # noqa: ARG002
        """Refuse what is of no protocol that Celery knows."""
        self._refuse(message, InvalidTaskError())

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:  # noqa: ARG002
        """Refuse what nobody registered here; the error is a KeyError of its name."""
        log.error("refused a message for an unknown task: %.100r", exc.args[0])
        self._let_go(message)

    def _refuse(self, message: Any, error: Exception) -> None:
        log.error("refused a message that cannot be read: %s", type(error).__name__)
        self._let_go(message)

    def _let_go(self, message: Any) -> None:
        if not message.acknowledged:
            message.reject_log_error(log, self.connection_errors)

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
