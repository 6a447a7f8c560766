"""The worker's consumer: it waits for an absent broker and refuses messages that aren't ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from queue import Empty
from typing import Any

from amqp.exceptions import PreconditionFailed
from celery import Celery
from celery.exceptions import InvalidTaskError, WorkerShutdown
from celery.worker import state
from celery.worker.consumer import Consumer
from celery.worker.strategy import default
from kombu.exceptions import KombuError
from kombu.transport import redis as transport
from redis.exceptions import RedisError

from tasks_app.broker.defaults import CONTROL_QUEUE, OURS
from tasks_app.broker.internals import SAFE_LISTS
from tasks_app.broker.messages import HEADER, ForeignMessages, is_name, is_ours
from tasks_app.broker.outage import Outage, why_away
from tasks_app.domain.tasks.error_text import printable, quiet_logger
from tasks_app.runtime.handlers.registry import HANDLERS

log = quiet_logger(__name__)
UNREADABLE = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError),
    KombuError,
)
"""What Celery raises over a message with odd headers. It would end the worker."""
RETRY = {"interval_start": 1, "interval_step": 1, "interval_max": 2}
"""Seconds between two tries. Celery's grow to 30: all work would wait that long for a broker that
is back."""
_DELAYS = "celery.worker.consumer.delayed_delivery:DelayedDelivery"


class PatientConsumer(Consumer):
    """Celery's consumer, which watches while it connects and refuses what it cannot read."""

    _was_ready = False
    _failed_starts = 0  # since it was ready for the last time

    def __init__(self, *args: Any, **options: Any) -> None:
        self.outage = Outage()
        super().__init__(*args, **options)

    def on_ready(self) -> None:
        self._was_ready, self._failed_starts = True, 0
        super().on_ready()

    def ensure_connected(self, conn: Any) -> Any:
        """Connect, however long it takes; kombu calls back every second.

        A broker that refuses a worker which was never ready ends it: a user has to change
        something.
        """
        attempt = conn.ensure_connection
        tried = (*conn.connection_errors, *conn.channel_errors, TypeError, ValueError)

        def watchful(_errback: Any, max_retries: Any, callback: Callable[[], None]) -> Any:
            def each_second() -> None:
                self.controller.check_children()
                callback()

            def failed(error: Exception, _interval: float) -> None:
                self._end_if_refused(conn, error)
                self.outage.record_failure(_url(conn), why_away(error))

            tries = 0
            while True:
                try:
                    return attempt(failed, max_retries, **RETRY, callback=each_second)
                except tried as error:  # kombu gives up at once
                    failed(error, 0.0)
                    conn.maybe_switch_next()
                _pause(tries, each_second)
                tries += 1

        conn.ensure_connection = watchful
        connected = super().ensure_connected(conn)
        self.outage.record_answer()
        return connected

    def _end_if_refused(self, conn: Any, error: Exception) -> None:
        """End a worker that was never ready with one sentence, unless it has another broker."""
        cause = why_away(error)
        if cause.ends_with and not self._was_ready and len(conn.alt) <= 1:
            log.critical("The broker %s %s. %s", _url(conn), cause.fact, cause.advice)
            raise WorkerShutdown(cause.ends_with) from None

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        """Refuse what Celery fails on: a message that is not acknowledged keeps its place."""
        handle = super().create_task_handler(*args, **options)

        def careful(message: Any) -> Any:
            try:
                return handle(message)
            except self.connection_errors:
                raise
            except UNREADABLE as error:
                return self._refuse(message, error)

        return careful

    # Celery logs the message in each of these cases, and some bodies make that raise.

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        self._refuse(message, exc)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:  # noqa: ARG002
        self._refuse(message, exc)

    def on_unknown_message(self, body: Any, message: Any) -> None:  # noqa: ARG002
        self._refuse(message, InvalidTaskError())

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:  # noqa: ARG002
        log.error("refused a message for an unknown task: %.100r", exc.args[0])  # a KeyError's name
        self._reject(message)

    def _refuse(self, message: Any, error: Exception) -> None:
        log.error("refused a message that cannot be read: %s", type(error).__name__)
        self._reject(message)

    def _reject(self, message: Any) -> None:
        if not message.acknowledged:
            message.reject_log_error(log, self.connection_errors)

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        super().on_connection_error_before_connected(exc)
        self._pause_after_failures()

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Drop the lost connection, also if kombu raises while it closes it, and pause.

        Seen with Redis: a collected channel tries to restore messages when it closes, and raises
        AttributeError, which ended the worker.
        """
        self._end_if_refused(self.connection, exc)
        try:
            super().on_connection_error_after_connected(exc)
        except Exception as error:
            if self.connection is not None:  # not dropped yet: the error came from elsewhere
                raise
            log.warning("the lost connection did not close in order: %s", type(error).__name__)
        self._pause_after_failures()

    def on_close(self) -> None:
        """Keep the timers of our steps: Celery 5.5 drops those of the whole worker."""
        ours = [one for one in self.timer.queue if one.entry.fun.__module__.startswith("tasks_app")]
        super().on_close()
        kept = {id(one.entry) for one in self.timer.queue}
        for one in ours:
            if id(one.entry) not in kept:
                self.timer.enter_after(max(0.0, one.eta - time.monotonic()), one.entry)

    def _pause_after_failures(self) -> None:
        def each_second() -> None:
            self.controller.check_children()
            state.maybe_shutdown()

        if self._failed_starts:
            _pause(self._failed_starts - 1, each_second)
        self._failed_starts += 1


def _pause(tries: int, each_second: Callable[[], None]) -> None:
    """Wait a second after the first try, and twice as long after each further one, 30 s at most."""
    for _ in range(min(2 ** min(tries, 10), 30)):
        each_second()
        time.sleep(1.0)


def _url(conn: Any) -> str:
    """Return the URL without its password; a virtual host's name may have any characters."""
    return printable(str(conn.as_uri()), keep="")


class RabbitConsumer(PatientConsumer):
    """The same on RabbitMQ: without Celery's queues for delays, and with a clear last message.

    Due times are in the database, so Celery's 28 queues for delays would stay empty. To send other
    Celery tasks with a countdown over quorum queues, set ``worker_consumer`` back to
    ``tasks_app.broker.consumer:PatientConsumer``.
    """

    class Blueprint(Consumer.Blueprint):
        """Celery's steps without the one for delays."""

        default_steps = tuple(step for step in Consumer.Blueprint.default_steps if step != _DELAYS)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """End the worker if a retry is useless: another queue has our queue's name."""
        if isinstance(exc, PreconditionFailed) and "inequivalent arg" in str(exc):
            log.critical(
                "A queue of ours exists with other arguments: %s. Give tasks_app a virtual host of "
                "its own, or delete that queue.",
                exc.reply_text,
            )
            raise WorkerShutdown(1) from None
        super().on_connection_error_after_connected(exc)


def own_queues() -> frozenset[str]:
    return frozenset({*HANDLERS.queues, CONTROL_QUEUE})


def serves_only(app: Celery, queues: frozenset[str]) -> bool:
    """Say whether the app's worker consumes no other queues now."""
    return bool(queues >= app.amqp.queues.consume_from.keys())


def guard_queues(app: Celery, ours: frozenset[str]) -> None:
    """Make the worker refuse tasks that are not ours when they come over one of our queues.

    The message itself names its queue, and a forged one may lie. It gains nothing: a worker that
    also serves other queues reads any task there, and one that does not refuses them all.
    """
    foreign = ForeignMessages()

    def is_valid(task: Any, message: Any, body: Any) -> bool:
        if task.name in OURS:
            return body is None and _is_plain(task.name, message)
        routing_key = (message.delivery_info or {}).get("routing_key")
        return not (serves_only(app, ours) or routing_key in ours)

    def guarded(task: Any, app: Any, consumer: Any) -> Callable[..., Any]:
        run = default(task, app, consumer)

        def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> Any:
            if not (task.name in OURS and foreign.refuses(message.headers)):
                if is_valid(task, message, body):
                    return run(message, body, ack, reject, callbacks)
                log.error("refused task %s on a queue of tasks_app", task.name)
            message.reject_log_error(log, consumer.connection_errors)
            return None

        return handle

    for task in app.tasks.values():
        task.start_strategy = lambda app, consumer, task=task, **_: guarded(task, app, consumer)


def _is_plain(task: str, message: Any) -> bool:
    """Say whether the message is as we publish it, and strip what we do not need."""
    name, expires = message.headers.get("id"), message.headers.get("expires")
    if message.content_type != "application/json" or not (is_name(name) and _is_instant(expires)):
        return False  # ``accept_content`` may allow formats that run code when read
    if not is_ours(task, message.payload):
        return False
    kept = {HEADER: message.headers[HEADER]} if HEADER in message.headers else {}
    message.headers = {"task": task, "id": name, "root_id": name, "expires": expires, **kept}
    needed = ("body_encoding", "delivery_info", "delivery_tag")  # to return it to the broker
    message.properties = {k: v for k, v in message.properties.items() if k in needed}
    # Celery would look up a message marked as redelivered in the result store.
    message.delivery_info = {**(message.delivery_info or {}), "redelivered": False}
    return True


def _is_instant(value: Any) -> bool:
    try:
        # Every time zone can express these years.
        return value is None or 1 < datetime.fromisoformat(value).year < 9999  # noqa: PLR2004
    except (TypeError, ValueError):
        return False


class SafeRedisChannel(transport.Channel):
    """kombu's channel, which drops what cannot be parsed."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except (Empty, OSError, RedisError):  # of the connection: Celery handles them
            raise
        except Exception as error:
            log.error("dropped what isn't a message: %s", type(error).__name__)  # noqa: TRY400  it may show payloads
            return True


class SafeSentinelChannel(SafeRedisChannel, transport.SentinelChannel): ...


def drop_invalid_messages() -> None:
    """Use these channels for every connection to Redis that this process makes from now on."""
    if not SAFE_LISTS.works:
        return
    transport.Transport.Channel = SafeRedisChannel
    transport.SentinelTransport.Channel = SafeSentinelChannel
