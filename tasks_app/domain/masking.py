"""Masks: settings as they may be shown, without what only their owner may know."""

from __future__ import annotations

import re
from typing import Any

MASK = "***"
_SECRET_NAME = re.compile(r"passw|pwd|secret|token|credential|api_?key|private|signature", re.I)
_IN_URL = re.compile(r"(://[^/\s:@]*):[^\s;]*@")
_IN_QUERY = re.compile(r"((?:passw|pwd|secret|token|key)[^=&\s]*=)[^&\s;]+", re.I)


def masked(value: Any, name: str = "") -> Any:
    """Return the value with passwords, tokens and the like replaced, however deep they lie."""
    if value is not None and _SECRET_NAME.search(name):
        return MASK
    match value:
        case str():
            return _IN_QUERY.sub(rf"\1{MASK}", _IN_URL.sub(rf"\1:{MASK}@", value))
        case dict():
            return {key: masked(each, str(key)) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [masked(each) for each in value]
        case _:
            return value
