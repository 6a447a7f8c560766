"""What a message of ours may hold: ids, or nothing."""

from __future__ import annotations

from typing import Any

from tasks_app.broker.defaults import EXECUTE

MOST_IDS = 500
LARGEST_ID = 2**63 - 1
LONGEST_NAME = 255
_WHOLE = 3
"""Arguments, keyword arguments, and what Celery embeds for its canvas."""


def is_ours(task: str, body: Any) -> bool:
    """Say whether a decoded body is one that we publish for this task, without a canvas."""
    match body:
        case [list() as args, dict() as kwargs, dict() as embedded] if len(body) == _WHOLE:
            return not kwargs and not any(embedded.values()) and _are_arguments(task, args)
        case _:
            return False


def _are_arguments(task: str, args: list[Any]) -> bool:
    return not args if task != EXECUTE else len(args) == 2 and are_ids(*args)  # noqa: PLR2004


def are_ids(wake: Any, ids: Any) -> bool:
    """Say whether these are a positive number, or None for a hint, and 1 to 500 ids of tasks."""
    return (
        (wake is None or _is_id(wake))
        and isinstance(ids, list)
        and 1 <= len(ids) <= MOST_IDS
        and all(map(_is_id, ids))
    )


def is_name(value: Any) -> bool:
    """Say whether this may name a message: the name goes to logs."""
    return isinstance(value, str) and len(value) <= LONGEST_NAME and value.isprintable()


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST_ID
