"""A broker that doesn't answer or takes no messages: why, and what the log says."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from tasks_app.domain.durations import rough_span, to_the_second
from tasks_app.domain.errors import EXIT_UNREACHABLE, EXIT_USAGE
from tasks_app.domain.tasks.error_text import printable, quiet_logger

log = quiet_logger(__name__)
URL = "TASKS_APP_BROKER_URL"
_RUNS = f"Check {URL} and that it runs. Tasks wait in the database."


class OutageCause(NamedTuple):
    """``fact`` is a sentence's predicate: its subject is the broker."""

    fact: str
    advice: str
    ends_with: int | None = None
    """The exit code of a worker that cannot start because of it; None: it may pass by itself."""


_REFUSALS = (
    (
        r"AccessRefused: .*?((?:\w+ )?access to .*) refused for user",
        OutageCause(
            "refuses {0}", "Grant its user the rights configure, write and read.", EXIT_UNREACHABLE
        ),
    ),
    (
        r"(?:AccessRefused|AuthenticationError|AuthenticationWrongNumberOfArgsError): ",
        OutageCause(
            "does not let in the user of its URL",
            f"Correct user and password in {URL}.",
            EXIT_UNREACHABLE,
        ),
    ),
    (
        r"NotAllowed: .*connection limit",
        OutageCause("has no connection left", "Raise its limit. Tasks wait in the database."),
    ),
    (
        r"NotAllowed: .*vhost .*not found",
        OutageCause(
            "has no such virtual host", f"Create it, or correct it in {URL}.", EXIT_UNREACHABLE
        ),
    ),
    (
        r"NotAllowed: .*access to vhost",
        OutageCause(
            "keeps the user of its URL out of the virtual host",
            f"Run rabbitmqctl set_permissions, or correct {URL}.",
            EXIT_UNREACHABLE,
        ),
    ),
    (
        r"NoPermissionError: ",
        OutageCause("does not allow its user a command", "Check the user's ACL.", EXIT_UNREACHABLE),
    ),
    (
        r"ResponseError: .*DB index is out of range",
        OutageCause("has no database of that number", f"Correct it in {URL}.", EXIT_UNREACHABLE),
    ),
)


def why_away(error: BaseException) -> OutageCause:
    """Return why the broker was not reached, in our own words: a library's may hold secrets."""
    for one in causes(error):
        text = f"{type(one).__name__}: {one}"
        for pattern, cause in _REFUSALS:
            if found := re.match(pattern, text, re.DOTALL):
                fact = cause.fact.format(*(printable(group, keep="") for group in found.groups()))
                return cause._replace(fact=fact)
        if isinstance(one, OSError) and one.strerror:
            return OutageCause(f"does not answer: {one.strerror}", _RUNS)
        if "Timeout" in type(one).__name__:
            return OutageCause("does not answer in time", _RUNS)
    # Drivers raise these over an option that they do not accept, before they connect.
    if isinstance(error, TypeError | ValueError | AttributeError):
        advice = f"Check the options in {URL} and in broker_transport_options of celeryconfig.py."
        return OutageCause(f"cannot be asked ({type(error).__name__})", advice, EXIT_USAGE)
    return OutageCause(f"does not answer ({type(error).__name__})", _RUNS)


def causes(error: BaseException) -> Iterator[BaseException]:
    following: BaseException | None = error
    while following is not None:
        yield following
        following = following.__cause__ or following.__context__


class Outage:
    """What one process logs while its broker is away, and once when it is back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.note = ""
        """For probes: why, and since when; empty while the broker answers."""
        self._clock = clock
        self._began: float | None = None
        self._since = ""
        self._log_at = 0.0

    def record_failure(self, broker: str, cause: OutageCause) -> None:
        now = self._clock()
        if self._began is None:
            self._began = self._log_at = now
            self._since = to_the_second(datetime.now(UTC))  # noqa: TID251  shown to people
        self.note = f"the broker {cause.fact}, since {self._since}"
        if now >= self._log_at:
            self._log_at = now + 60.0
            log.error(
                "The broker %s %s, since %s; it is tried again. %s",
                broker, cause.fact, self._since, cause.advice,
            )  # fmt: skip

    def record_answer(self) -> None:
        if self._began is None:
            return
        away = timedelta(seconds=self._clock() - self._began)
        self._began, self.note = None, ""
        log.warning("The broker answers again. It was away for %s.", rough_span(away))


class BlockedError(Exception):
    """The broker takes no message from this connection."""


def watch_alarms(connection: Any) -> None:
    """Let a kombu connection raise BlockedError when RabbitMQ blocks it."""
    if connection.transport.driver_type == "amqp":

        def refuse(reason: str) -> None:
            raise BlockedError(reason)

        connection.connection.on_blocked = refuse


def try_to_send(connection: Any, patience_s: float) -> None:
    """Pass if the broker takes a message, or is of a kind that refuses each one by itself.

    Raises:
        BlockedError: it takes none now.
        Exception: it did not answer in time.
    """
    if connection.transport.driver_type != "amqp":
        return
    watch_alarms(connection)
    channel = connection.default_channel
    # No queue has this name: the broker confirms the message, and drops it.
    channel.basic_publish_confirm(
        channel.prepare_message(b""), routing_key="tasks_app.nobody", confirm_timeout=patience_s
    )
