"""What Flower may show of a task's data: names and sizes, and values of keys that were named.

Whoever reaches Flower or the broker reads it, so values are hidden unless somebody chose to show
them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tasks_app.domain.handlers.cause_line import decoded
from tasks_app.domain.tasks.error_text import clean

LONGEST_VALUE = 100


def shown(label: str, text: str | None, keys: Sequence[str]) -> dict[str, Any]:
    """Return what may be seen of a JSON text: its size and the values of ``keys``."""
    if text is None:
        return {}
    values = decoded(text) if keys else None
    chosen = {
        key: _short(values[key]) for key in keys if isinstance(values, dict) and key in values
    }
    return {**chosen, label: f"{len(text.encode())} bytes"}


def _short(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return clean(text, LONGEST_VALUE)
