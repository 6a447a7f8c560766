"""For your own Alembic: filters that make autogenerate leave our tables alone.

This module imports neither Celery nor Alembic; see docs/alembic.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tasks_app.pool.tables import SCHEMA, TABLES

_PARTITION = re.compile(r"task_completed_(default|p\d{8})$")


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """For ``include_name``: True for all that Alembic finds in the database but our tables."""
    return type_ != "table" or not _is_ours(name, parent_names.get("schema_name"))


def include_object(object_: Any, name: str | None, type_: str, *_: Any) -> bool:
    """For ``include_object``: the same of your metadata, for example models of our tables."""
    return type_ != "table" or not _is_ours(name, object_.schema)


def _is_ours(name: str | None, schema: str | None) -> bool:
    if name is None or not (name in TABLES or _PARTITION.match(name)):
        return False
    from alembic import context  # noqa: PLC0415  Alembic calls us, so it is there

    default = context.get_context().dialect.default_schema_name  # None means the default
    return (schema or default) == (SCHEMA or default)
