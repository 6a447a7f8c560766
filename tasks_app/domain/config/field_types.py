"""Types of settings: each reads and checks one kind of value; ValueError says what to write."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from tasks_app.domain.alerts import parse_rules, read_mail, read_webhook
from tasks_app.domain.config.retention import parse_histories, parse_keep
from tasks_app.domain.config.urls import (
    ENCODED,
    IDENTIFIER,
    NO_BROKERS,
    is_broker_url,
    read_database_url,
)
from tasks_app.domain.durations import parse_duration
from tasks_app.domain.encryption import read_keys
from tasks_app.domain.tasks.masks import masks_of

_PLACE = re.compile(r"folder:/.+|(?!folder:)[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_PATTERN = re.compile(r"[A-Za-z0-9_.:*?-]+")


def _span(value: object) -> object:
    try:
        return parse_duration(value) if isinstance(value, str | int | float) else value
    except ValueError:
        raise ValueError("use a span such as 500ms, 30s or 10m") from None


def _short(value: timedelta) -> timedelta:
    if value > timedelta(seconds=30):
        raise ValueError("rows may be parked for 30 s at most, or they look lost")
    return value


def _database(value: SecretStr) -> SecretStr:
    return SecretStr(read_database_url(value.get_secret_value()))


_BROKER_LOOKS = "use a URL such as redis://:password@host:6379/0"


def _broker(value: SecretStr) -> SecretStr:
    url = value.get_secret_value()
    if (scheme := url.partition(":")[0].partition("+")[0].lower()) in NO_BROKERS:
        raise ValueError(f"{scheme} leads to no broker; {_BROKER_LOOKS}")
    if url and ("://" not in url or not is_broker_url(url)):
        raise ValueError(f"{_BROKER_LOOKS}; {ENCODED}")
    return value


def _webhook(value: SecretStr) -> SecretStr:
    return SecretStr(read_webhook(value.get_secret_value()))


def _mail(value: SecretStr) -> SecretStr:
    read_mail(value.get_secret_value())
    return value


def _user_rules(value: str) -> str:
    parse_rules(value)
    return value


def _keys(value: SecretStr) -> SecretStr:
    read_keys(value.get_secret_value())
    return value


def _histories(value: str) -> str:
    parse_histories(value)
    return value


def _encrypted_tasks(value: str) -> str:
    for each in filter(None, map(str.strip, value.split(","))):
        if not _PATTERN.fullmatch(each.removeprefix("queue:")):
            raise ValueError("use names of tasks or queues, with * and ?: patient.*,queue:health")
    return value


def _large_values(value: str) -> str:
    if value and value != "database" and not _PLACE.fullmatch(value):
        raise ValueError("use database, folder:/path or module:function")
    return value


def _masked_paths(value: str) -> str:
    masks_of(value)
    return value


def _passwords(value: SecretStr) -> SecretStr:
    read_passwords(value.get_secret_value())
    return value


def _ages(value: str) -> str:
    try:
        parse_keep(value)
    except ValueError:
        raise ValueError("use ages such as 30d, forever or 30d,mail.send=1d") from None
    return value


def _identifier(value: str) -> str | None:
    if value and not IDENTIFIER.match(value):
        raise ValueError("use a lower-case identifier of at most 48 characters")
    return value or None


Positive = Annotated[int, Field(ge=1)]
Span = Annotated[timedelta, BeforeValidator(_span)]
"""A ``timedelta``, from ``500ms`` or a number of seconds."""
ShortSpan = Annotated[Span, AfterValidator(_short)]
DatabaseUrl = Annotated[SecretStr, AfterValidator(_database)]
BrokerUrl = Annotated[SecretStr, AfterValidator(_broker)]
Webhook = Annotated[SecretStr, AfterValidator(_webhook)]
Mail = Annotated[SecretStr, AfterValidator(_mail)]
UserRules = Annotated[str, AfterValidator(_user_rules)]
"""As ``parse_rules`` reads them."""


def read_passwords(text: str) -> dict[str, str]:
    """Return the passwords of ``name:password,other:password`` by name.

    Raises:
        ValueError: a name or a password is missing. The message repeats nothing of it.
    """
    pairs = _pairs(text)
    if not all(name and password for name, password in pairs):
        raise ValueError("use name:password, several separated by commas")
    return dict(pairs)


def _pairs(text: str) -> list[tuple[str, str]]:
    parts = (each.strip().partition(":") for each in text.split(",") if each.strip())
    return [(name.strip(), value) for name, _, value in parts]


Passwords = Annotated[SecretStr, AfterValidator(_passwords)]
Ages = Annotated[str, AfterValidator(_ages)]
"""As ``parse_keep`` reads them."""
HistoryOfQueues = Annotated[str, AfterValidator(_histories)]
"""As ``parse_histories`` reads it."""
SchemaName = Annotated[str, AfterValidator(_identifier)]
"""An empty one becomes None."""
EncryptionKeys = Annotated[SecretStr, AfterValidator(_keys)]
"""As ``read_keys`` reads them; each is a secret."""
EncryptedTasks = Annotated[str, AfterValidator(_encrypted_tasks)]
"""Patterns of names, and of queues behind ``queue:``."""
LargeValues = Annotated[str, AfterValidator(_large_values)]
"""Where they are kept, or nothing."""
MaskedPaths = Annotated[str, AfterValidator(_masked_paths)]
"""As ``Masks`` reads them."""
ROLES = ("viewer", "operator", "admin")
"""Each may do what the ones before it may."""
EVERYBODY = "*"


def read_roles(text: str) -> dict[str, str]:
    """Return the roles of ``bob:admin,*:viewer`` by name.

    Raises:
        ValueError: there is no such role, or a name is missing.
    """
    pairs = _pairs(text)
    if not all(name and role in ROLES for name, role in pairs):
        raise ValueError("use bob:admin,*:viewer with the roles viewer, operator and admin")
    return dict(pairs)


def checked_roles(text: str) -> str:
    """Return it, if :func:`read_roles` can read it."""
    read_roles(text)
    return text
