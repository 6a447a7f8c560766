"""URLs with passwords: what is wrong with one, said without a character of it.

Whoever parses a URL that he cannot read tells its parts in his error, and so a password. So we look
first, and hand on what can be read.
"""

from __future__ import annotations

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
OTHER_DRIVERS = ("asyncpg", "psycopg2", "psycopg2cffi", "pg8000")
_SCHEME = r"[A-Za-z][\w+.-]*://"
_DATABASE = re.compile(
    rf"{_SCHEME}(?:[^:/@]*(?::[^@]*)?@)?(?:\[[^\]@/?]+\]|[^:/?@]*)(?::\d+)?(?:[/?][^@]*)?"
)
"""As SQLAlchemy reads it, with a host and a port that can be those."""
_AUTHORITY = re.compile(rf"{_SCHEME}([^/?#]*)(.*)", re.DOTALL)
BETWEEN = re.compile(rf";(?={_SCHEME})")
"""What parts the URLs of several brokers."""


def read_database_url(url: str) -> str:
    """Return the URL as SQLAlchemy is to read it: ``postgres://`` is what many hosts give out.

    Raises:
        ValueError: it is none, or not of PostgreSQL, or of another driver; not a character of it
            is said but a well-known name.
    """
    scheme = url.partition(":")[0].lower()
    database, _, driver = scheme.partition("+")
    if database in OTHER_DATABASES:
        raise ValueError(f"{database} is no PostgreSQL, and nothing else will do; {LOOKS}")
    if _DATABASE.fullmatch(url) is None or database not in ("postgres", "postgresql"):
        raise ValueError(f"{LOOKS}; {ENCODED}")
    if driver not in ("", "psycopg", "psycopg_async"):
        named = driver if driver in OTHER_DRIVERS else "that"
        raise ValueError(
            f"the driver is psycopg 3, which serves async handlers, too, and not {named}; "
            "write postgresql+psycopg:// in front"
        )
    return f"postgresql+psycopg{url[len(scheme) :]}"


def is_broker_url(url: str) -> bool:
    """Whether kombu reads in it, or in each of several, what was meant."""
    return all(_is_one(one) for one in url.split(";"))


def check_broker_urls(urls: Iterable[tuple[str, Any]]) -> None:
    """Pass if each of ``(name, value)``, URLs or lists of them, can be read.

    Raises:
        ConfigurationError: one cannot, which is named, and not shown.
    """
    for name, value in urls:
        for url in value if isinstance(value, list | tuple) else [value]:
            if isinstance(url, str) and not is_broker_url(url):
                raise ConfigurationError(f"The URL in {name} cannot be read: {ENCODED}.")


def _is_one(url: str) -> bool:
    found = _AUTHORITY.fullmatch(url)
    if found is None:
        return not set(url) & set("@/#")  # the name of a transport, or of a host
    authority, rest = found.groups()
    try:
        _ = urlsplit(url).port
    except ValueError:
        return False
    return "@" not in rest and "#" not in rest and authority.count("@") <= 1
