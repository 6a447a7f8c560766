"""The settings of this process, where each comes from, and how secrets in them are masked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import SecretStr

from tasks_app.domain.alerts import read_mail, shown_webhook
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.urls import BETWEEN, PREFIX
from tasks_app.domain.durations import format_duration
from tasks_app.domain.encryption import read_keys
from tasks_app.domain.errors import suggestion_for
from tasks_app.domain.finding import Finding, warn
from tasks_app.domain.tasks.masks import MASK

_INTERNAL = {f"{PREFIX}{name}" for name in ("NODE", "POOL", "QUEUES", "SLOTS")}  # set by processes


@dataclass(frozen=True, slots=True)
class Effective:
    """A setting; ``value`` is masked, ``source`` is ``environment`` or ``default``."""

    name: str
    value: Any
    source: str


def effective_settings(settings: Settings) -> list[Effective]:
    found = []
    for name, field in Settings.model_fields.items():
        variable = str(field.validation_alias or f"{PREFIX}{name.upper()}")
        source = "environment" if os.environ.get(variable) else "default"
        found.append(Effective(variable, _shown(getattr(settings, name), name), source))
    return found


def unknown_variables(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Return warnings about variables with our prefix that no setting has."""
    known = {effective.name for effective in effective_settings(Settings.model_construct())}
    advice = "No setting has this name. See docs/reference/settings.md."
    return [
        warn("settings", f"{name} is unknown{suggestion_for(name, known)}", advice)
        for name in sorted(environment)
        if name.startswith(PREFIX) and name not in known | _INTERNAL and "_TEST_" not in name
    ]


def _shown(value: Any, name: str) -> Any:
    match value:
        case SecretStr() if name == "alert_webhook":
            return shown_webhook(value.get_secret_value())
        case SecretStr() if name == "encryption_keys":  # base64 may look like a URL
            return ",".join(f"{key}:{MASK}" for key in read_keys(value.get_secret_value()))
        case SecretStr() if name == "alert_mail":
            return read_mail(value.get_secret_value()).shown
        case SecretStr():
            return masked_url(value.get_secret_value())
        case timedelta():
            return format_duration(value)
        case _:
            return masked(value, name)


_SECRET_NAME = re.compile(r"passw|pwd|secret|token|credential|api_?key|private|signature", re.I)
_URL_NAME = re.compile(r"(^|_)(url|backend|dsn)$", re.I)
_WITH_USER = re.compile(
    r"(\w[\w+.-]*://[^:@/?#\s]*)(:[^@]*(?:@[^@]*)*)?@([\w.,:\[\]-]*(?:[/?].*)?)"
)
_WITHOUT = re.compile(r"\w[\w+.-]*://(?:[\w.,-]|\[[\w:.]+\])*(?::\d+)?(?:[/?][^@]*)?")
_WORD = re.compile(r"[\w.-]*")
_IN_QUERY = re.compile(r"((?:passw|pwd|secret|token|key)[^=&\s]*=)[^&\s;]+", re.I)


def masked(value: Any, name: str = "") -> Any:
    """Return the value with passwords, tokens and other secrets replaced, at any depth."""
    if value is not None and _SECRET_NAME.search(name):
        return MASK
    match value:
        case str() if "://" in value or _URL_NAME.search(name):
            return masked_url(value)
        case str():
            return _IN_QUERY.sub(rf"\1{MASK}", value)
        case dict():
            return {key: masked(each, str(key)) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [masked(each, name) for each in value]
        case _:
            return value


def masked_url(value: str) -> str:
    """Return URLs without their passwords; mask the whole of other texts and ambiguous URLs."""
    urls = BETWEEN.split(value)
    for place, url in enumerate(urls):
        if found := _WITH_USER.fullmatch(url):
            user, password, rest = found.groups()
            urls[place] = f"{user}{f':{MASK}' if password else ''}@{rest}"
        elif not (_WITHOUT.fullmatch(url) or _WORD.fullmatch(url)):
            urls[place] = MASK
    return ";".join(_IN_QUERY.sub(rf"\1{MASK}", url) for url in urls)
