"""The options of a task, and the checks of options, names, queues and ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, TypedDict, TypeVar

from tasks_app.domain.durations import ALLOWED, Duration, parse_duration
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.tasks.payload_checks import check_text
from tasks_app.domain.tasks.retry_policy import RetryPolicy

Names = str | Iterable[str]


@dataclass(frozen=True, slots=True)
class Locks:
    """Locks of a task, as ``ctx.locks`` takes them: ``locks=Locks(shared="rates")``.

    In a handler's locks ``{account}`` stands for the payload's field of that name.
    """

    exclusive: Names = ()
    shared: Names = ()
    counted: Mapping[str, int] | None = None


class TaskOptions(TypedDict, total=False):
    """Options of ``create_task``. None means the default, as if it were left out."""

    queue: str | None
    """Default: the handler's queue where the handler is known, else ``default``."""
    priority: int | None
    """0 is first, 9 last; default 5."""
    run_at: datetime | None
    """Not before this aware instant. Excludes ``delay``."""
    delay: Duration | None
    """Not before this long after the insert, by the database's clock."""
    biz_key: str | None
    """The business object of the task, as ``order:42``; searchable, not unique."""
    unique_key: str | None
    """At most one pending or running task of this name has it, unless ``unique_scope`` differs."""
    unique_scope: str | None
    """For how long the key is taken: ``queued``, ``queued_or_running``, ``until_terminal`` (the
    default; the same), ``for_period 1h`` (or another time), ``forever``."""
    on_conflict: Literal["return_existing", "replace_payload", "reschedule", "raise"] | None
    """When the key is taken: ``return_existing`` (default), ``replace_payload``, ``reschedule``,
    ``raise``."""
    max_wait: Duration | None
    """With ``reschedule``: the task is due at the latest this long after its creation."""
    fair_key: str | None
    """In a fair queue: the key, for instance a tenant, whose share it takes."""
    order_key: str | None
    """Tasks of one key run one at a time; among those that are due, the lowest id first."""
    order_policy: Literal["blocks", "skips"] | None
    """While a task of the key waits for a retry, or has failed for good: ``blocks`` (default; the
    tasks behind it wait) or ``skips`` (they run)."""
    strict_order: bool | None
    """True: producers of the key take turns, each until its commit, so ids are in commit order."""
    limit_key: str | Sequence[str] | None
    """Counts against the limit of this key, if an operator has set one. Of several keys, as
    ``["bank:acme", "tenant:7"]``, each must have room."""
    weight: int | None
    """How many tokens its start takes from the rates of its limit keys; default 1. What it really
    cost, its handler says by ``ctx.spend``."""
    locks: str | Sequence[str] | Locks | None
    """Resources that it locks while it runs: a name, a list of names, or ``Locks(shared=…)``. It
    waits for them before it starts. Default: the handler's."""
    max_attempts: int | None
    """This many charged failures lead to the error pool; default: the policy's."""
    retry: str | Sequence[Duration] | RetryPolicy | None
    """The retry policy; default: the handler's."""
    wait_first: bool | None
    """True: the first run, too, waits level 1 of the policy."""
    timeout: Duration | None
    """After this long an exception is raised inside the handler."""
    hard_timeout: Duration | None
    """After this long the child that runs the task is killed."""
    expires_at: datetime | None
    """A task that becomes due later than this does not run: it is EXPIRED."""
    enabled: bool | None
    """False: the task is SKIPPED when it becomes due."""
    headers: Mapping[str, Any] | None
    """A small JSON object that travels with the task, for instance for tracing."""


class OrderPolicy(StrEnum):
    """The effect of a task that waits for a retry, or has failed, on the tasks behind it."""

    BLOCKS = "blocks"  # they wait until it is over; if it failed, until it is requeued or unblocked
    SKIPS = "skips"  # they run


LONGEST_KEY = 255
LONGEST_SUB_STATUS = 200
MOST_LIMIT_KEYS = 8
HEAVIEST = 2**31 - 1
_LONGEST_QUOTED = 60
T = TypeVar("T")


def read_key(options: Mapping[str, Any], name: str) -> str | None:
    value = options.get(name)
    return None if value is None else _key(value, f"options.{name}")


def read_limit_keys(options: Mapping[str, Any]) -> list[str]:
    given = options.get("limit_key")
    if not isinstance(given, list | tuple):
        one = read_key(options, "limit_key")
        return [] if one is None else [one]
    if len(given) > MOST_LIMIT_KEYS:
        problem = f"has {len(given)} keys"
        raise InvalidTaskError("options.limit_key", problem, f"at most {MOST_LIMIT_KEYS}")
    keys = [_key(value, f"options.limit_key[{place}]") for place, value in enumerate(given)]
    return list(dict.fromkeys(keys))


def _key(value: Any, path: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_KEY:
        allowed = f"text of 1 to {LONGEST_KEY} characters"
        raise InvalidTaskError(path, f"is {shown_value(value)}", allowed)
    return check_text(value, path)


def read_integer(options: Mapping[str, Any], name: str, least: int, most: int) -> int:
    return check_integer(options[name], f"options.{name}", least, most)


def check_integer(value: Any, path: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidTaskError(path, f"is {shown_value(value)}", f"an integer {least} .. {most}")
    return int(value)


def read_boolean(options: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise InvalidTaskError(f"options.{name}", f"is {shown_value(value)}", "True or False")
    return value


def read_instant(options: Mapping[str, Any], name: str) -> datetime | None:
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidTaskError(f"options.{name}", f"is {shown_value(value)}", "an aware datetime")
    if value.utcoffset() is None:
        allowed = "an aware datetime, such as datetime.now(UTC)"
        raise InvalidTaskError(f"options.{name}", "has no time zone", allowed)
    if not 1970 <= value.year < 9000:  # noqa: PLR2004  what any driver can hold, and any wait
        raise InvalidTaskError(f"options.{name}", f"is in the year {value.year}", "1970 .. 8999")
    return value


def read_duration(options: Mapping[str, Any], name: str) -> timedelta | None:
    value = options.get(name)
    if value is None:
        return None
    return parse_option(parse_duration, value, name, ALLOWED)


def read_milliseconds(options: Mapping[str, Any], name: str) -> int | None:
    """Return a duration of 1 ms to 24 days: the column is an integer."""
    lasts = read_duration(options, name)
    if lasts is None:
        return None
    number = round(lasts / timedelta(milliseconds=1))
    if not 1 <= number < 2**31:
        raise InvalidTaskError(f"options.{name}", f"is {lasts}", "1 ms .. 24 days")
    return number


def parse_option(parse: Callable[[Any], T], value: Any, name: str, allowed: str) -> T:
    try:
        return parse(value)
    except (ValueError, TypeError) as error:
        raise InvalidTaskError(f"options.{name}", str(error), allowed) from None


def check_sub_status(text: Any) -> str:
    """Return a handler's text about its task's state; empty removes the last one.

    Raises InvalidTaskError: it cannot be stored.
    """
    if not isinstance(text, str) or len(text) > LONGEST_SUB_STATUS:
        allowed = f"text of at most {LONGEST_SUB_STATUS} characters"
        raise InvalidTaskError("sub_status", f"is {shown_value(text)}", allowed)
    return check_text(text, "sub_status")


NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.:-]{0,254}$")
QUEUE = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]{0,99}$")


def check_name(name: Any) -> str:
    """Return the valid name of a task or schedule, or raise InvalidTaskError."""
    return _matching(NAME, name, "name")


def check_queue(queue: Any) -> str:
    """Return the valid name of a queue, or raise InvalidTaskError."""
    return _matching(QUEUE, queue, "options.queue")


def _matching(pattern: re.Pattern[str], text: Any, path: str) -> str:
    if not isinstance(text, str) or not pattern.match(text) or text.endswith("\n"):
        problem = f"is {shown_value(text)}"
        raise InvalidTaskError(path, problem, f"text that matches {pattern.pattern}")
    return text


def check_id(value: Any, path: str = "task_id") -> int:
    """Return the id if a row can have it, or raise InvalidTaskError."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        allowed = "the integer that its creation returned"
        raise InvalidTaskError(path, f"is {shown_value(value)}", allowed)
    return int(value)


def shown_value(value: Any) -> str:
    """Describe a bad value without repeating much of it: it may be long, or a secret."""
    if isinstance(value, int) and value.bit_length() > 64:  # noqa: PLR2004  too long to print
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str | int | float):
        quoted = repr(value)
        return quoted if len(quoted) <= _LONGEST_QUOTED else f"{quoted[: _LONGEST_QUOTED - 1]}…"
    return f"of type {type(value).__name__}"
