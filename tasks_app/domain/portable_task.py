"""A waiting task as a line of JSON, to be brought into another database."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.encryption import token_of, wrapped
from tasks_app.domain.errors import InvalidSelectionError, InvalidTaskError
from tasks_app.domain.tasks.records import TaskRow

FORMAT = 1
_LIFE = ("attempt", "failures", "crashes", "retry_level")
_MOST = 32_767
_YEARS = range(1970, 9000)
"""That the database takes."""
IDS = range(1, 2**63)
WRONG_JSON = (
    *(ValueError, KeyError, TypeError, AttributeError),
    *(OverflowError, RecursionError),  # of 1e999, and of arrays in arrays in …
)
"""What reading a line raises that nobody of us has written."""


@dataclass(frozen=True, slots=True)
class PortableTask:
    """What a task takes along: all that its producer said, and what it has behind it."""

    id: int
    """In the database that it comes from."""
    idempotency_key: UUID
    created_at: datetime
    life: tuple[int, ...]
    """Attempt, failures, crashes and retry level."""
    row: TaskRow


def line_of(row: Any, payload: str) -> str:
    """Return a line for a row; its payload is stored text, so no number is rounded."""
    options = {
        "queue": row.queue,
        "priority": row.priority,
        "run_at": row.run_at.isoformat(),
        "biz_key": row.biz_key,
        "unique_key": row.unique_key,
        "order_key": row.order_key,
        "order_policy": "skips" if row.order_skips else None,
        "limit_key": row.limit_key and [row.limit_key, *(row.more_limit_keys or ())],
        "fair_key": row.fair_key,
        "max_attempts": row.max_attempts,
        "retry": row.retry,
        "timeout": row.timeout_ms and f"{row.timeout_ms}ms",
        "hard_timeout": row.hard_timeout_ms and f"{row.hard_timeout_ms}ms",
        "expires_at": row.expires_at and row.expires_at.isoformat(),
        "enabled": row.enabled,
    }
    fields = {
        "tasks_app": FORMAT,
        "id": row.id,
        "idempotency_key": str(row.idempotency_key),
        "created_at": row.created_at.isoformat(),
        **{name: getattr(row, name) for name in _LIFE},
        "name": row.name,
        "options": {name: value for name, value in options.items() if value is not None},
    }
    head = json.dumps(fields, ensure_ascii=False)[:-1]
    headers = f', "headers": {row.headers}' if row.headers is not None else ""
    return f'{head}{headers}, "payload": {payload}}}'


def task_of(line: str, number: int, limit: int) -> PortableTask:
    """Return the task of a line, checked as if a producer had said it.

    Raises:
        InvalidSelectionError: it is no such line, or no such task can be here.
    """
    try:
        given = json.loads(line)
        if given["tasks_app"] != FORMAT:
            raise InvalidSelectionError(
                f"Line {number} is of another version of tasks_app. Import it with that one."
            )
        options: Any = dict(given["options"])
        for name in options.keys() & {"run_at", "expires_at"}:
            options[name] = datetime.fromisoformat(options[name])
        options["headers"] = given.get("headers")
        encrypted = token_of(given["payload"])
        new = NewTask(given["name"], None if encrypted else given["payload"], options)
        created_at = datetime.fromisoformat(given["created_at"])
        life = tuple(int(given[name]) for name in _LIFE)
        task_id = int(given["id"])
        _check(task_id, created_at, life)
        key, row = UUID(given["idempotency_key"]), validate_task(new, None, limit)
        if encrypted:  # its keys open it there, too
            row = row._replace(payload=_sealed(wrapped(encrypted), limit))
        return PortableTask(task_id, key, created_at, life, row)
    except InvalidTaskError as error:
        raise InvalidSelectionError(f"Line {number}: {error} Nothing was imported.") from None
    except WRONG_JSON as error:
        if isinstance(error, InvalidSelectionError):
            raise
        raise InvalidSelectionError(
            f"Line {number} is no task that tasks-app export wrote. Nothing was imported."
        ) from None


def _sealed(text: str, limit: int) -> str:
    """Return an encrypted payload; it is a third longer than what the limit is of."""
    if len(text) > 2 * limit:
        problem = f"has {len(text)} bytes, encrypted"
        raise InvalidTaskError("payload", problem, f"at most {2 * limit} bytes")
    return text


def _check(task_id: int, created_at: datetime, life: tuple[int, ...]) -> None:
    attempt, failures, crashes, retry_level = life
    if task_id not in IDS or created_at.astimezone(UTC).year not in _YEARS:
        raise ValueError
    if created_at.tzinfo is None or min(life) < 0 or max(failures, crashes) > attempt:
        raise ValueError
    if max(failures, crashes, retry_level) > _MOST or attempt >= 2**31:
        raise ValueError
