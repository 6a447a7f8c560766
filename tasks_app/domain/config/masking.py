"""Masks: settings as they may be shown, without what only their owner may know."""

from __future__ import annotations

import re
from typing import Any

from tasks_app.domain.config.urls import BETWEEN

MASK = "***"
_SECRET_NAME = re.compile(r"passw|pwd|secret|token|credential|api_?key|private|signature", re.I)
_URL_NAME = re.compile(r"(^|_)(url|backend|dsn)$", re.I)
_WITH_USER = re.compile(
    r"(\w[\w+.-]*://[^:@/?#\s]*)(:[^@]*(?:@[^@]*)*)?@([\w.,:\[\]-]*(?:[/?].*)?)"
)
_WITHOUT = re.compile(r"\w[\w+.-]*://(?:[\w.,-]|\[[\w:.]+\])*(?::\d+)?(?:[/?][^@]*)?")
_WORD = re.compile(r"[\w.-]*")
_IN_QUERY = re.compile(r"((?:passw|pwd|secret|token|key)[^=&\s]*=)[^&\s;]+", re.I)


def masked(value: Any, name: str = "") -> Any:
    """Return the value with passwords, tokens and the like replaced, however deep they lie."""
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
    """Return URLs without their passwords; of what is none, or may be read as another, nothing."""
    return ";".join(_one(url) for url in BETWEEN.split(value))


def _one(url: str) -> str:
    if found := _WITH_USER.fullmatch(url):
        user, password, rest = found.groups()
        url = f"{user}{f':{MASK}' if password else ''}@{rest}"
    elif not (_WITHOUT.fullmatch(url) or _WORD.fullmatch(url)):
        return MASK
    return _IN_QUERY.sub(rf"\1{MASK}", url)
