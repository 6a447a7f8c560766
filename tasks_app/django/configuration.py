"""Our settings in a Django project: its database, and what stands in ``TASKS_APP``.

The environment goes before both. A second URL is not needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core import mail
from django.db import DEFAULT_DB_ALIAS, connections
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import ConfigurationError
from tasks_app.runtime.startup import DATABASE_VARIABLE

DATABASE = "DATABASE"
"""Which of Django's databases has our tables."""
_DJANGOS = frozenset(
    {"assume_role", "client_encoding", "isolation_level", "pool", "server_side_binding"}
)
"""Options of Django's connection; all others are libpq's."""


def database_alias() -> str:
    """Return the alias of the database that has our tables; ConfigurationError: there is none."""
    alias = _given().get(DATABASE, DEFAULT_DB_ALIAS)
    if alias not in settings.DATABASES:
        raise ConfigurationError(
            f"TASKS_APP['DATABASE'] is {str(alias)!r:.60}, which is none of Django's DATABASES. "
            f"Name one of: {', '.join(settings.DATABASES)}."
        )
    return str(alias)


def settings_of_django() -> dict[str, str]:
    """Return what Django's settings say, by the names of our settings.

    Raises:
        ConfigurationError: a key of ``TASKS_APP`` is not a setting, its database is not
            PostgreSQL, or the environment names another one.
    """
    known = {name.upper() for name in Settings.model_fields} - {"SCHEMA_NAME"}
    given = {key: value for key, value in _given().items() if key != DATABASE}
    for key in given:
        if key == "SCHEMA":
            raise ConfigurationError(
                "TASKS_APP['SCHEMA'] comes too late: tasks_app reads the schema when it is "
                "imported. Set TASKS_APP_SCHEMA in the environment."
            )
        if key == "DATABASE_URL":
            raise ConfigurationError(
                "TASKS_APP['DATABASE_URL'] would be a second database beside Django's. "
                "Name one of DATABASES by TASKS_APP['DATABASE']."
            )
        if key not in known:
            raise ConfigurationError(
                f"TASKS_APP has {key!r:.60}, which is no setting. "
                "Use names of docs/reference/settings.md without TASKS_APP_, or DATABASE."
            )
    alias = database_alias()
    _check_environment(alias)
    found = {key.lower(): _text(value) for key, value in given.items() if value is not None}
    # Django's test runner drops its database, and cannot while a connection for hints is open.
    in_tests = {"hints": "off"} if hasattr(mail, "outbox") else {}
    return {"database_url": url_of(alias), **in_tests, **found}


def _check_environment(alias: str) -> None:
    """Check that workers, who read the environment first, look where Django writes.

    Only the names of the databases are compared: a pooler has another host.
    """
    try:
        ours = make_url(os.environ[DATABASE_VARIABLE]).database
    except (KeyError, ArgumentError):  # none, or one that the settings refuse
        return
    theirs = str(connections[alias].settings_dict["NAME"])
    if ours != theirs:
        raise ConfigurationError(
            f"{DATABASE_VARIABLE} names the database {ours!r:.60}, and Django's {alias!r} is "
            f"{theirs!r:.60}. Unset it: the worker would not find what Django creates."
        )


def url_of(alias: str) -> str:
    """Return the URL of one of Django's databases as it is now: in tests, of the test database."""
    database = connections[alias]
    if database.vendor != "postgresql":
        raise ConfigurationError(
            f"Django's database {alias!r} is {database.vendor}, and tasks live in PostgreSQL. "
            "Name another one by TASKS_APP = {'DATABASE': …}."
        )
    parts = database.settings_dict
    options = {key: str(v) for key, v in parts["OPTIONS"].items() if key not in _DJANGOS}
    host, port = parts["HOST"] or None, parts["PORT"] or None
    if host is not None and host.startswith("/"):  # a folder with a socket
        options["host"], host = host, None
        if port is not None:
            options["port"], port = str(port), None
    url = URL.create(
        "postgresql+psycopg",
        parts["USER"] or None,
        parts["PASSWORD"] or None,
        host,
        None if port is None else int(port),
        parts["NAME"] or None,
        options,
    )
    return url.render_as_string(hide_password=False)


def _given() -> Mapping[str, Any]:
    found: Any = getattr(settings, "TASKS_APP", {})
    if not isinstance(found, Mapping):
        raise ConfigurationError(
            f"TASKS_APP in Django's settings is a {type(found).__name__}. "
            "Make it a dict, such as {'BROKER_URL': 'redis://…'}."
        )
    return found


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple | set):
        return ",".join(map(str, value))
    return str(value)
