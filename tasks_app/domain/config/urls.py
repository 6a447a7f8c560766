"""Where the data is: URLs of databases and brokers, local addresses, and the schema's name."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from tasks_app.domain.errors import ConfigurationError

ENCODED = (
    "write special characters of user and password in percent, such as %40 for @, %2F for /, "
    "%23 for #, %3A for : and %3B for ;"
)
LOOKS = "use a URL such as postgresql+psycopg://user:password@host/name"
OTHER_DATABASES = ("sqlite", "mysql", "mariadb", "oracle", "mssql", "cockroachdb", "mongodb")
NO_BROKERS = {"http", "https", "postgres", "postgresql", *OTHER_DATABASES} - {"mongodb"}
"""Common mistakes. kombu knows many transports, and reports unknown ones itself."""
OTHER_DRIVERS = ("asyncpg", "psycopg2", "psycopg2cffi", "pg8000")
_SCHEME = r"[A-Za-z][\w+.-]*://"
_DATABASE = re.compile(  # as SQLAlchemy reads it, with a possible host and port
    rf"{_SCHEME}(?:[^:/@]*(?::[^@]*)?@)?(?:\[[^\]@/?]+\]|[^:/?@]*)(?::\d+)?(?:[/?][^@]*)?"
)
_AUTHORITY = re.compile(rf"{_SCHEME}([^/?#]*)(.*)", re.DOTALL)
BETWEEN = re.compile(rf";(?={_SCHEME})")  # separates the URLs of several brokers


def read_database_url(url: str) -> str:
    """Return the URL for SQLAlchemy; ``postgres://``, which many providers use, is accepted.

    Raises ValueError: it is not a URL, or of another database or driver. The message repeats
    nothing of the URL but a well-known name.
    """
    scheme = url.partition(":")[0].lower()
    database, _, driver = scheme.partition("+")
    if database in OTHER_DATABASES:
        raise ValueError(f"{database} is not PostgreSQL, the only database that works; {LOOKS}")
    if _DATABASE.fullmatch(url) is None or database not in ("postgres", "postgresql"):
        raise ValueError(f"{LOOKS}; {ENCODED}")
    if driver not in ("", "psycopg", "psycopg_async"):
        other = f", not {driver}" if driver in OTHER_DRIVERS else ""
        raise ValueError(f"the driver must be psycopg 3{other}; begin with postgresql+psycopg://")
    return f"postgresql+psycopg{url[len(scheme) :]}"


def is_broker_url(url: str) -> bool:
    """Whether kombu reads the URL, or each of several, as intended."""
    return all(_is_single_broker_url(one) for one in url.split(";"))


def _is_single_broker_url(url: str) -> bool:
    found = _AUTHORITY.fullmatch(url)
    if found is None:
        return not set(url) & set("@/#")  # the name of a transport, or of a host
    authority, rest = found.groups()
    try:
        _ = urlsplit(url).port
    except ValueError:
        return False
    return "@" not in rest and "#" not in rest and authority.count("@") <= 1


def check_broker_urls(urls: Iterable[tuple[str, Any]]) -> None:
    """Check ``(name, value)`` pairs whose values are URLs or lists of URLs.

    Raises ConfigurationError: one cannot be read; the message has its name, not its value.
    """
    for name, value in urls:
        for url in value if isinstance(value, list | tuple) else [value]:
            if isinstance(url, str) and not is_broker_url(url):
                raise ConfigurationError(f"The URL in {name} cannot be read: {ENCODED}.")


def is_local(host: str) -> bool:
    """Return whether the address is certainly local; an empty one means all addresses."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


PREFIX = "TASKS_APP_"
IDENTIFIER = re.compile(r"(?!pg_|information_schema\Z)[a-z_][a-z0-9_]{0,47}\Z")
"""PostgreSQL reserves ``pg_*`` and ``information_schema``."""


def schema_name() -> str | None:
    """Return ``TASKS_APP_SCHEMA``, or None; ConfigurationError: not a plain identifier."""
    name = os.environ.get(f"{PREFIX}SCHEMA") or None
    if name and not IDENTIFIER.match(name):
        raise ConfigurationError(
            f"{PREFIX}SCHEMA is wrong: use a lower-case identifier of at most 48 characters, "
            "neither pg_… nor information_schema."
        )
    return name
