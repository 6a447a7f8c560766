"""Names of tasks and queues, ids, and how a bad value is shown."""

from __future__ import annotations

import re
from typing import Any

from tasks_app.domain.errors import InvalidTaskError

NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.:-]{0,254}$")
QUEUE = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]{0,99}$")


def check_name(name: Any) -> str:
    """Return the name of a task or schedule if it is valid; else raise InvalidTaskError."""
    if not isinstance(name, str) or not NAME.match(name) or name.endswith("\n"):
        raise InvalidTaskError("name", f"is {shown(name)}", f"text that matches {NAME.pattern}")
    return name


def check_queue(queue: Any) -> str:
    """Return the name of a queue if it is valid; else raise InvalidTaskError."""
    if not isinstance(queue, str) or not QUEUE.match(queue) or queue.endswith("\n"):
        raise InvalidTaskError(
            "options.queue", f"is {shown(queue)}", f"text that matches {QUEUE.pattern}"
        )
    return queue


def check_id(value: Any, path: str = "task_id") -> int:
    """Return the id if a row can have it; else raise InvalidTaskError."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise InvalidTaskError(path, f"is {shown(value)}", "the integer that its creation returned")
    return int(value)


def shown(value: Any) -> str:
    """Describe a bad value without repeating much of it: it may be long, or a secret."""
    if isinstance(value, int) and value.bit_length() > 64:  # noqa: PLR2004  too long to print
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str | int | float):
        return f"{value!r:.60}"
    return f"of type {type(value).__name__}"
