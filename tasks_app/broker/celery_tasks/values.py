"""What Celery writes and reads differently from us: special JSON values, and instants."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from celery import Celery
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils.json import JSONEncoder, object_hook

_ENCODER = JSONEncoder()


def to_json(value: Any) -> Any:
    """Return what kombu writes for a date, a decimal, a UUID, bytes or a type of the user's.

    Raises:
        TypeError: kombu does not know it either.
    """
    return _ENCODER.default(value)  # type: ignore[no-untyped-call]


def from_json(value: Any) -> Any:
    """Return the value with all that :func:`to_json` wrote restored, inner values first.

    Raises:
        ValueError: it names a type that is not registered with kombu here.
    """
    match value:
        case dict():
            return object_hook({key: from_json(item) for key, item in value.items()})
        case list():
            return [from_json(item) for item in value]
        case _:
            return value


def moment(app: Celery, value: datetime | str) -> datetime:
    """Return an eta or an expiry as Celery reads it; naive ones are UTC."""
    moment: datetime = maybe_make_aware(maybe_iso8601(value), app.timezone)
    return moment
