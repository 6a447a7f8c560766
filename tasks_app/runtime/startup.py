"""What a process does first: name its project, set up its framework, pause the collector."""

from __future__ import annotations

import gc
import os
from binascii import crc32
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from tasks_app.domain.errors import ConfigurationError

DATABASE_VARIABLE, SCHEMA_VARIABLE = "TASKS_APP_DATABASE_URL", "TASKS_APP_SCHEMA"
DJANGO_VARIABLE = "DJANGO_SETTINGS_MODULE"
_CHOOSE = ("host", "port", "dbname", "service")  # query options of a URL that choose the database


def project_place() -> str:
    """Return where the tables are, without user and password; empty: not configured."""
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


def project_key() -> str:
    """Return its short name for a folder; empty where :func:`project_place` is."""
    found = project_place()
    return f"{crc32(found.encode()):08x}" if found else ""


def set_up_framework() -> None:
    """Set Django up, if its settings are named and ``manage.py`` has not done it.

    Otherwise models could not be imported, and Django's settings could not hold ours.
    """
    module = os.environ.get(DJANGO_VARIABLE)
    if not module or find_spec("django") is None:
        return
    import django  # noqa: PLC0415  few have it
    from django.apps import apps  # noqa: PLC0415

    if apps.ready or apps.loading:
        return
    try:
        django.setup()
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise ConfigurationError(
            f"{DJANGO_VARIABLE} names {module}, which cannot be found. "
            "Check the spelling and that the project's folder is on PYTHONPATH."
        ) from error


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage in big calls and imports; of overlapping blocks the first to end collects.

    The collector would walk all objects of the process again and again, for a third of the time of
    such a call and a tenth of a worker's imports, and find none: what they make is still used.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
