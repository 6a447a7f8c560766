"""Which project this is: the database and schema that the environment names, or Django's settings.

Probes use it, so it imports nothing slow, and reads no settings.
"""

from __future__ import annotations

import os
from binascii import crc32

DATABASE_VARIABLE, SCHEMA_VARIABLE = "TASKS_APP_DATABASE_URL", "TASKS_APP_SCHEMA"
DJANGO_VARIABLE = "DJANGO_SETTINGS_MODULE"
_CHOOSE = ("host", "port", "dbname", "service")
"""Query options of a URL that choose the database."""


def place() -> str:
    """Return where the tables are, without user and password; empty: it is not configured."""
    url = os.environ.get(DATABASE_VARIABLE, "")
    if not url and (module := os.environ.get(DJANGO_VARIABLE)):
        return f"django {module}"
    _, found, rest = url.partition("://")
    at, _, query = rest.rpartition("@")[2].partition("?")
    port = at.partition("/")[0].rpartition("]")[2].partition(":")[2]
    if not found or not (port.isdigit() or not port):  # what stands there may be a password
        return ""
    chosen = sorted(o for o in query.split("&") if o.partition("=")[0] in _CHOOSE)
    schema = os.environ.get(SCHEMA_VARIABLE)
    return " ".join([at.lower() or "localhost", *chosen, *([f"schema {schema}"] if schema else [])])


def key() -> str:
    """Return a short name of it for a folder; empty where :func:`place` is."""
    found = place()
    return f"{crc32(found.encode()):08x}" if found else ""
