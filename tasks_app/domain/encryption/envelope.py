"""The form in which an encrypted value is stored: ``{"$encrypted": "v1.<key id>.<base64>"}``.

It is valid jsonb, and says by which key it can be opened. Error texts, whose columns are text, are
stored as the token alone.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from tasks_app.domain.errors import InvalidTaskError

MARK = "$encrypted"
VERSION = "v1"
HIDDEN = "encrypted"
"""What stands for an encrypted text where people read it."""
BEGIN = f'{{"{MARK}":'
"""With what the JSON text of each encrypted value begins."""
_TOKEN = re.compile(r"(v\d+)\.([A-Za-z0-9_-]{1,40})\.([A-Za-z0-9_-]+)")


class Token(NamedTuple):
    """The parts of a token."""

    version: str
    key_id: str
    data: str
    """base64, as in URLs and without its padding."""

    def __str__(self) -> str:
        return ".".join(self)


def parse_token(text: str) -> Token | None:
    """Return the parts of a token; None: it is none."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else Token(*found.groups())


def wrapped(token: Token) -> str:
    """Return the JSON text that holds a token."""
    return f'{BEGIN} "{token}"}}'


def token_in(text: str | None) -> Token | None:
    """Return the token that a JSON text holds and nothing beside it; None: it is not encrypted."""
    if text is None or not text.startswith(BEGIN):
        return None
    try:
        return token_of(json.loads(text))
    except (ValueError, RecursionError):
        return None


def token_of(value: Any) -> Token | None:
    """Return the token of a decoded JSON value; None: it is not encrypted."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    text = value.get(MARK)
    return parse_token(text) if isinstance(text, str) else None


def check_no_token(text: str) -> None:
    """Pass if a payload is no stored token: a handler would be given what it holds.

    Raises:
        InvalidTaskError: it is one.
    """
    if token_in(text) is not None:
        raise InvalidTaskError(f"payload.{MARK}", "is an encrypted value", "the value itself")


def concealed(value: Any) -> Any:
    """Return what people may see of a JSON value: of an encrypted one, which key opens it."""
    token = token_of(value)
    return value if token is None else f"{HIDDEN} (key {token.key_id})"
