"""A broker that doesn't answer or takes no messages: why, and what the log says."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tasks_app.domain.durations import rough_span, to_the_second
from tasks_app.domain.errors import AWAY, USAGE
from tasks_app.domain.tasks.error_text import printable, quiet_logger

log = quiet_logger(__name__)
SAID_EVERY_S = 60.0
URL = "TASKS_APP_BROKER_URL"


@dataclass(frozen=True, slots=True)
class OutageCause:
    """``fact`` is a sentence's predicate: its subject is the broker."""

    fact: str
    advice: str
    ends_with: int | None = None
    """The exit code of a worker that it keeps from starting; None: it may pass by itself."""


_RUNS = f"Check {URL} and that it runs. Tasks wait in the database."
_REFUSALS = (
    (
        r"AccessRefused: .*?((?:\w+ )?access to .*) refused for user",
        OutageCause("refuses {0}", "Give its user the rights to configure, write and read.", AWAY),
    ),
    (
        r"(?:AccessRefused|AuthenticationError|AuthenticationWrongNumberOfArgsError): ",
        OutageCause(
            "does not let in the user of its URL", f"Correct user and password in {URL}.", AWAY
        ),
    ),
    (
        r"NotAllowed: .*connection limit",
        OutageCause("has no connection left", "Raise its limit. Tasks wait in the database."),
    ),
    (
        r"NotAllowed: .*vhost .*not found",
        OutageCause("has no such virtual host", f"Create it, or correct it in {URL}.", AWAY),
    ),
    (
        r"NotAllowed: .*access to vhost",
        OutageCause(
            "keeps the user of its URL out of the virtual host",
            f"Run rabbitmqctl set_permissions, or correct {URL}.",
            AWAY,
        ),
    ),
    (
        r"NoPermissionError: ",
        OutageCause("does not allow its user a command", "Look at the user's ACL.", AWAY),
    ),
    (
        r"ResponseError: .*DB index is out of range",
        OutageCause("has no database of that number", f"Correct it in {URL}.", AWAY),
    ),
)
_NO_ANSWER_YET = (TypeError, ValueError, AttributeError)
"""What drivers raise over an option that they do not take, before they ask anybody."""


def why_away(error: BaseException) -> OutageCause:
    """Return why the broker was not reached, in the system's words: a library's may be secret."""
    for one in _chain(error):
        said = f"{type(one).__name__}: {one}"
        for pattern, cause in _REFUSALS:
            if found := re.match(pattern, said, re.DOTALL):
                fact = cause.fact.format(*(printable(group, keep="") for group in found.groups()))
                return OutageCause(fact, cause.advice, cause.ends_with)
        if isinstance(one, OSError) and one.strerror:
            return OutageCause(f"does not answer: {one.strerror}", _RUNS)
        if "Timeout" in type(one).__name__:
            return OutageCause("does not answer in time", _RUNS)
    if isinstance(error, _NO_ANSWER_YET):
        advice = f"Look at the options in {URL} and in broker_transport_options of celeryconfig.py."
        return OutageCause(f"cannot be asked ({type(error).__name__})", advice, USAGE)
    return OutageCause(f"does not answer ({type(error).__name__})", _RUNS)


def _chain(error: BaseException) -> Iterator[BaseException]:
    following: BaseException | None = error
    while following is not None:
        yield following
        following = following.__cause__ or following.__context__


class Outage:
    """What one process says while its broker is away, and once when it is back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.note = ""
        """For probes: why, and since when; empty while the broker answers."""
        self._clock = clock
        self._began: float | None = None
        self._since = ""
        self._say_at = 0.0

    def goes_on(self, broker: str, cause: OutageCause) -> None:
        """Take note of one more try in vain; ``broker`` is a URL without its password."""
        now = self._clock()
        if self._began is None:
            self._began = self._say_at = now
            self._since = to_the_second(datetime.now(UTC))  # noqa: TID251  shown to people
        self.note = f"the broker {cause.fact}, since {self._since}"
        if now >= self._say_at:
            self._say_at = now + SAID_EVERY_S
            log.error(
                "The broker %s %s, since %s; it is tried again. %s",
                broker, cause.fact, self._since, cause.advice,
            )  # fmt: skip

    def over(self) -> None:
        """Say that the broker is back, if it was away."""
        if self._began is None:
            return
        away = timedelta(seconds=self._clock() - self._began)
        self._began, self.note = None, ""
        log.warning("The broker answers again. It was away for %s.", rough_span(away))


NOBODY = "tasks_app.nobody"
"""No queue has this name: the broker confirms a message to it, and drops it."""


class BlockedError(Exception):
    """The broker takes no message from this connection."""


def heed_alarms(connection: Any) -> None:
    """Let a connection of kombu's raise the notice to its user."""
    if connection.transport.driver_type == "amqp":
        connection.connection.on_blocked = _refuse


def try_to_send(connection: Any, patience_s: float) -> None:
    """Pass if the broker takes a message, or is of a kind that refuses each one by itself.

    Raises:
        BlockedError: it takes none now.
        Exception: it did not answer in time.
    """
    if connection.transport.driver_type != "amqp":
        return
    heed_alarms(connection)
    channel = connection.default_channel
    channel.basic_publish_confirm(
        channel.prepare_message(b""), routing_key=NOBODY, confirm_timeout=patience_s
    )


def _refuse(reason: str) -> None:
    raise BlockedError(reason)
