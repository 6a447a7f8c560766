"""Types of settings: how each is read from text. Errors never repeat a value: it may be secret."""

from __future__ import annotations

import re
from collections.abc import Callable
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

ROLES = ("viewer", "operator", "admin")  # each may do what the ones before it may
EVERYBODY = "*"
_STORE = re.compile(r"folder:/.+|(?!folder:)[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_PATTERN = re.compile(r"[A-Za-z0-9_.:*?-]+")
_BROKER_LOOKS = "use a URL such as redis://:password@host:6379/0"


def read_passwords(text: str) -> dict[str, str]:
    """Return the passwords of ``name:password,other:password`` by name; raises ValueError."""
    pairs = _pairs(text)
    if not all(name and password for name, password in pairs):
        raise ValueError("use name:password, several separated by commas")
    return dict(pairs)


def read_roles(text: str) -> dict[str, str]:
    """Return the roles of ``bob:admin,*:viewer`` by name; raises ValueError."""
    pairs = _pairs(text)
    if not all(name and role in ROLES for name, role in pairs):
        raise ValueError("use bob:admin,*:viewer with the roles viewer, operator and admin")
    return dict(pairs)


def _pairs(text: str) -> list[tuple[str, str]]:
    parts = (each.strip().partition(":") for each in text.split(",") if each.strip())
    return [(name.strip(), value) for name, _, value in parts]


def _span(value: object) -> object:
    try:
        return parse_duration(value) if isinstance(value, str | int | float) else value
    except ValueError:
        raise ValueError("use a span such as 500ms, 30s or 10m") from None


def _short(value: timedelta) -> timedelta:
    if value > timedelta(seconds=30):
        raise ValueError("rows may be parked for 30 s at most, or they look lost")
    return value


def _broker_url(url: str) -> None:
    if (scheme := url.partition(":")[0].partition("+")[0].lower()) in NO_BROKERS:
        raise ValueError(f"{scheme} is not the scheme of a broker; {_BROKER_LOOKS}")
    if url and ("://" not in url or not is_broker_url(url)):
        raise ValueError(f"{_BROKER_LOOKS}; {ENCODED}")


def _encrypted_tasks(value: str) -> None:
    for each in filter(None, map(str.strip, value.split(","))):
        if not _PATTERN.fullmatch(each.removeprefix("queue:")):
            raise ValueError("use names of tasks or queues, with * and ?: patient.*,queue:health")


def _large_values(value: str) -> None:
    if value and value != "database" and not _STORE.fullmatch(value):
        raise ValueError("use database, folder:/path or module:function")


def _ages(value: str) -> None:
    try:
        parse_keep(value)
    except ValueError:
        raise ValueError("use ages such as 30d, forever or 30d,mail.send=1d") from None


def _identifier(value: str) -> str | None:
    if value and not IDENTIFIER.match(value):
        raise ValueError("use a lower-case identifier of at most 48 characters")
    return value or None


def _checked(check: Callable[[str], object]) -> AfterValidator:
    """Keep the text, or the secret one, if ``check`` raises no ValueError."""

    def validate(value: str | SecretStr) -> str | SecretStr:
        check(value.get_secret_value() if isinstance(value, SecretStr) else value)
        return value

    return AfterValidator(validate)


def _database_url(value: SecretStr) -> SecretStr:
    return SecretStr(read_database_url(value.get_secret_value()))


Positive = Annotated[int, Field(ge=1)]
Span = Annotated[timedelta, BeforeValidator(_span)]  # from 500ms, or a number of seconds
ShortSpan = Annotated[Span, AfterValidator(_short)]
DatabaseUrl = Annotated[SecretStr, AfterValidator(_database_url)]
BrokerUrl = Annotated[SecretStr, _checked(_broker_url)]
Webhook = Annotated[SecretStr, _checked(read_webhook)]
Mail = Annotated[SecretStr, _checked(read_mail)]
Passwords = Annotated[SecretStr, _checked(read_passwords)]
EncryptionKeys = Annotated[SecretStr, _checked(read_keys)]
UserRules = Annotated[str, _checked(parse_rules)]
Ages = Annotated[str, _checked(_ages)]
HistoryOfQueues = Annotated[str, _checked(parse_histories)]
SchemaName = Annotated[str, AfterValidator(_identifier)]  # an empty one becomes None
EncryptedTasks = Annotated[str, _checked(_encrypted_tasks)]
LargeValues = Annotated[str, _checked(_large_values)]
MaskedPaths = Annotated[str, _checked(masks_of)]
Roles = Annotated[str, _checked(read_roles)]
