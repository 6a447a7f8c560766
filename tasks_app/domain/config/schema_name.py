"""Where our tables are: the one setting that every statement needs, read without the others."""

from __future__ import annotations

import os
import re

from tasks_app.domain.errors import ConfigurationError

PREFIX = "TASKS_APP_"
IDENTIFIER = re.compile(r"^[a-z_][a-z0-9_]{0,47}$")


def schema_name() -> str | None:
    """Return the schema's name, whatever is wrong with the other settings.

    Raises:
        ConfigurationError: it is no plain identifier.
    """
    name = os.environ.get(f"{PREFIX}SCHEMA") or None
    if name and not IDENTIFIER.match(name):
        raise ConfigurationError(
            f"{PREFIX}SCHEMA is wrong: use a lower-case identifier of at most 48 characters."
        )
    return name
