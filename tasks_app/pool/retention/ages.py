"""Ages: what is too old, by the ages of a setting, as SQL."""

from __future__ import annotations

from typing import Any

from tasks_app.domain.config.retention import Keep
from tasks_app.pool.tables import NOW


def too_old(at: str, name: str) -> str:
    """Return the condition that what ended ``at`` is older than its ``name`` may be; see ages()."""
    return f"""
    {at} < {NOW} - CASE WHEN {name} = ANY(CAST(:names AS text[]))
        THEN (CAST(:ages AS interval[]))[array_position(CAST(:names AS text[]), {name})]
        ELSE CAST(:age AS interval) END
"""


def ages(keep: Keep) -> dict[str, Any]:
    """Return the parameters of that condition."""
    return {"names": list(keep.names), "ages": list(keep.names.values()), "age": keep.age}
