"""Checks of a task's options, each by its name in what a producer gave.

All raise InvalidTaskError with the option's path and what is allowed; None: it was not given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

from tasks_app.domain.durations import ALLOWED, parse_duration
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.tasks.names import shown
from tasks_app.domain.tasks.payload_checks import check_text

LONGEST_KEY = 255
LONGEST_SUB_STATUS = 200
MOST_LIMIT_KEYS = 8
T = TypeVar("T")


def key(options: Mapping[str, Any], name: str) -> str | None:
    value = options.get(name)
    return None if value is None else _key(value, f"options.{name}")


def limit_keys(options: Mapping[str, Any]) -> list[str]:
    """Return the keys, each once, in the order given."""
    given = options.get("limit_key")
    if not isinstance(given, list | tuple):
        one = key(options, "limit_key")
        return [] if one is None else [one]
    if len(given) > MOST_LIMIT_KEYS:
        problem = f"has {len(given)} keys"
        raise InvalidTaskError("options.limit_key", problem, f"at most {MOST_LIMIT_KEYS}")
    keys = [_key(value, f"options.limit_key[{place}]") for place, value in enumerate(given)]
    return list(dict.fromkeys(keys))


def _key(value: Any, path: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_KEY:
        raise InvalidTaskError(path, f"is {shown(value)}", f"text of 1 to {LONGEST_KEY} characters")
    return check_text(value, path)


def integer(options: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidTaskError(
            f"options.{name}", f"is {shown(value)}", f"an integer {least} .. {most}"
        )
    return int(value)


def boolean(options: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise InvalidTaskError(f"options.{name}", f"is {shown(value)}", "True or False")
    return value


def moment(options: Mapping[str, Any], name: str) -> datetime | None:
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidTaskError(f"options.{name}", f"is {shown(value)}", "an aware datetime")
    if value.utcoffset() is None:
        raise InvalidTaskError(
            f"options.{name}",
            "has no time zone",
            "an aware datetime, such as datetime.now(UTC)",
        )
    if not 1970 <= value.year < 9000:  # noqa: PLR2004  what any driver can hold, and any wait
        raise InvalidTaskError(f"options.{name}", f"is in the year {value.year}", "1970 .. 8999")
    return value


def span(options: Mapping[str, Any], name: str) -> timedelta | None:
    value = options.get(name)
    if value is None:
        return None
    return tried(parse_duration, value, name, ALLOWED)


def milliseconds(options: Mapping[str, Any], name: str) -> int | None:
    """Return a duration of 1 ms to 24 days: the column is an integer."""
    lasts = span(options, name)
    if lasts is None:
        return None
    number = round(lasts / timedelta(milliseconds=1))
    if not 1 <= number < 2**31:
        raise InvalidTaskError(f"options.{name}", f"is {lasts}", "1 ms .. 24 days")
    return number


def tried(parse: Callable[[Any], T], value: Any, name: str, allowed: str) -> T:
    try:
        return parse(value)
    except (ValueError, TypeError) as error:
        raise InvalidTaskError(f"options.{name}", str(error), allowed) from None


def check_sub_status(text: Any) -> str:
    """Return what a handler says of its task's state; empty: nothing any more.

    Raises:
        InvalidTaskError: it cannot be stored.
    """
    if not isinstance(text, str) or len(text) > LONGEST_SUB_STATUS:
        allowed = f"text of at most {LONGEST_SUB_STATUS} characters"
        raise InvalidTaskError("sub_status", f"is {shown(text)}", allowed)
    return check_text(text, "sub_status")
