"""A waiting task as a line of JSON, to be brought into another database."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.encryption import token_of, wrap_token
from tasks_app.domain.errors import InvalidSelectionError, InvalidTaskError
from tasks_app.domain.locks import OF_HANDLER
from tasks_app.domain.tasks.options import Locks
from tasks_app.domain.tasks.records import TaskRow

FORMAT = 1
IDS = range(1, 2**63)
WRONG_JSON = (  # what reading a foreign line raises; the last two: 1e999, and deeply nested arrays
    *(ValueError, KeyError, TypeError, AttributeError),
    *(OverflowError, RecursionError),
)
_COUNTERS = ("attempt", "failures", "crashes", "retry_level")


@dataclass(frozen=True, slots=True)
class PortableTask:
    """All options of a task, and its history in numbers."""

    id: int  # in the database that it comes from
    idempotency_key: UUID
    created_at: datetime
    life: tuple[int, ...]  # attempt, failures, crashes and retry level
    row: TaskRow


def write_line(row: Any, payload: str) -> str:
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
        "weight": row.weight,
        "fair_key": row.fair_key,
        "locks": None if row.locks is None or OF_HANDLER in row.locks else row.locks,
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
        **{name: getattr(row, name) for name in _COUNTERS},
        "name": row.name,
        "options": {name: value for name, value in options.items() if value is not None},
    }
    head = json.dumps(fields, ensure_ascii=False)[:-1]
    headers = f', "headers": {row.headers}' if row.headers is not None else ""
    return f'{head}{headers}, "payload": {payload}}}'


def read_line(line: str, number: int, limit: int) -> PortableTask:
    """Return the task of a line, checked like a producer's; raises InvalidSelectionError."""
    try:
        given = json.loads(line)
        if given["tasks_app"] != FORMAT:
            raise InvalidSelectionError(
                f"Line {number} is of another version of tasks_app. Import it with that one."
            )
        options: Any = dict(given["options"])
        for name in options.keys() & {"run_at", "expires_at"}:
            options[name] = datetime.fromisoformat(options[name])
        if (locks := options.pop("locks", None)) is not None:
            options["locks"] = Locks(**locks)
        options["headers"] = given.get("headers")
        encrypted = token_of(given["payload"])
        new = NewTask(given["name"], None if encrypted else given["payload"], options)
        created_at = datetime.fromisoformat(given["created_at"])
        life = tuple(int(given[name]) for name in _COUNTERS)
        task_id = int(given["id"])
        attempt, failures, crashes, retry_level = life
        if (
            task_id not in IDS
            or created_at.tzinfo is None
            or not 1970 <= created_at.astimezone(UTC).year < 9000  # noqa: PLR2004  as PostgreSQL has
            or not 0 <= attempt < 2**31
            or min(life) < 0
            or max(failures, crashes) > attempt
            or max(failures, crashes, retry_level) > 32_767  # noqa: PLR2004  smallint
        ):
            raise ValueError
        key, row = UUID(given["idempotency_key"]), validate_task(new, None, limit)
        if encrypted:  # the keys of its origin open it here, too; it is a third longer
            text = wrap_token(encrypted)
            if len(text) > 2 * limit:
                problem = f"has {len(text)} bytes, encrypted"
                raise InvalidTaskError("payload", problem, f"at most {2 * limit} bytes")
            row = row._replace(payload=text)
        return PortableTask(task_id, key, created_at, life, row)
    except InvalidTaskError as error:
        raise InvalidSelectionError(f"Line {number}: {error} Nothing was imported.") from None
    except WRONG_JSON as error:
        if isinstance(error, InvalidSelectionError):
            raise
        raise InvalidSelectionError(
            f"Line {number} is not a task that tasks-app export wrote. Nothing was imported."
        ) from None
