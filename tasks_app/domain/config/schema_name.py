"""The schema of our tables: every statement needs it, so it is read without the other settings."""

from __future__ import annotations

import os
import re

from tasks_app.domain.errors import ConfigurationError

PREFIX = "TASKS_APP_"
IDENTIFIER = re.compile(r"(?!pg_|information_schema\Z)[a-z_][a-z0-9_]{0,47}\Z")
"""PostgreSQL keeps ``pg_*`` and ``information_schema`` to itself."""


def schema_name() -> str | None:
    """Return ``TASKS_APP_SCHEMA``, or None; ConfigurationError if it is no plain identifier."""
    name = os.environ.get(f"{PREFIX}SCHEMA") or None
    if name and not IDENTIFIER.match(name):
        raise ConfigurationError(
            f"{PREFIX}SCHEMA is wrong: use a lower-case identifier of at most 48 characters, "
            "neither pg_… nor information_schema."
        )
    return name
