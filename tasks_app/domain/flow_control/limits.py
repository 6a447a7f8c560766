"""A limit in the words of whoever sets it, checked."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from tasks_app.domain.durations import parse_duration
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.flow_control.admission import Kind, Limit
from tasks_app.domain.tasks.names import check_name, check_queue
from tasks_app.domain.tasks.option_checks import LONGEST_KEY
from tasks_app.domain.tasks.payload import check_text

MOST = 2**31 - 1
LONGEST_PERIOD = timedelta(days=366)
LOOKS_A_SECOND = 10
"""So often a bucket is looked at while somebody waits for it: one that holds less than what flows
in between would lose the rest."""


def checked_target(kind: Any, target: Any) -> tuple[Kind, str]:
    """Return what a limit is of.

    Raises:
        InvalidTaskError: there is no such thing.
    """
    limited = [each.value for each in Kind if each is not Kind.ORDER]
    if kind not in limited:
        raise InvalidTaskError("limit.kind", "is none", ", ".join(limited))
    if kind == Kind.QUEUE:
        return Kind.QUEUE, check_queue(target)
    if kind == Kind.NAME:
        return Kind.NAME, check_name(target)
    if not isinstance(target, str) or not 1 <= len(target) <= LONGEST_KEY:
        allowed = f"text of 1 to {LONGEST_KEY} characters, or the beginning of some and *"
        raise InvalidTaskError("limit.target", "is no limit key", allowed)
    return Kind.KEY, check_text(target, "limit.target")


def limit_of(kind: Any, target: Any, most: Any, rate: Any, burst: Any) -> Limit:
    """Return the limit; ``rate`` is such as ``100/1m``.

    Raises:
        InvalidTaskError: it limits nothing, or cannot be kept.
    """
    of = checked_target(kind, target)
    if most is None and rate is None:
        raise InvalidTaskError("limit", "limits nothing", "most, rate, or both")
    if most is not None:
        most = _integer("most", most, 0)
    if rate is None:
        if burst is not None:
            raise InvalidTaskError("limit.burst", "is given without a rate", "both, or none")
        return Limit(*of, most)
    number, period = _rate(rate)
    limit = Limit(*of, most, number, period, 1)
    least = max(1, math.ceil(limit.per_second / LOOKS_A_SECOND))
    burst = max(1, math.ceil(limit.per_second)) if burst is None else _integer("burst", burst, 1)
    if burst < least:
        raise InvalidTaskError("limit.burst", f"is {burst} at {rate}", f"at least {least}")
    return Limit(*of, most, number, period, burst)


def _rate(rate: Any) -> tuple[int, timedelta]:
    number, _, span = rate.partition("/") if isinstance(rate, str) else ("", "", "")
    try:
        period = parse_duration(span)
        some = int(number)
    except ValueError:
        some, period = 0, timedelta(0)
    if not 1 <= some <= MOST or not timedelta(milliseconds=1) <= period <= LONGEST_PERIOD:
        raise InvalidTaskError("limit.rate", "is none", "a number and a time, such as 100/1m")
    return some, period


def _integer(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
        raise InvalidTaskError(f"limit.{name}", "is out of range", f"an integer {least} .. {MOST}")
    return value
