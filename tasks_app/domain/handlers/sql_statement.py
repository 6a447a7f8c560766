"""The one SQL statement that a task carries out, with ``:name`` where a payload's value goes.

What looks like a parameter in a text, a quoted name or a comment is none. A value is never part of
the statement: it is sent beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KINDS = frozenset(
    {"call", "delete", "insert", "merge", "refresh", "select", "truncate", "update", "with"}
)
_WHOLE = frozenset({"refresh", "truncate"})
"""PostgreSQL takes no parameters in these."""
_SEVERAL = "is more than one statement. Put them into a procedure, and CALL it."
_TOKEN = re.compile(
    r"""
    (?P<comment>  --[^\n]* | /\*.*?\*/ )
  | (?P<quoted>   [eE]'(?:[^'\\]|''|\\.)*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
                | \$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$ )
  | (?P<word>     [^\W\d][\w$]* )
  | (?P<cast>     :: )
  | :(?P<name>    [^\W\d]\w* )
  | (?P<position> \$\d+ )
  | (?P<end>      ; )
  | (?P<open>     ['"$] | /\* )
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class SqlStatement:
    """Parsed by :func:`parse_statement`."""

    text: str
    """For psycopg: ``%(name)s`` stands where the value goes."""
    names: tuple[str, ...]
    """Of its parameters, without repeats."""


def parse_statement(statement: str) -> SqlStatement:
    """Return the statement with its parameters.

    Raises:
        ValueError: it is not one statement that a task can carry out; says why.
    """
    if not isinstance(statement, str):
        raise ValueError(f"is of type {type(statement).__name__}. Give it as a text.")
    words, names, parts, end, is_over = list[str](), list[str](), list[str](), 0, False
    for found in _TOKEN.finditer(statement):
        between = statement[end : found.start()]
        parts.append(between.replace("%", "%%"))
        kind, token, end = found.lastgroup, found[0], found.end()
        if is_over and (between.strip() or kind not in {"comment", "end"}):
            raise ValueError(_SEVERAL)
        match kind:
            case "open":
                raise ValueError(f"has a {token} that is not closed. Close it.")
            case "position":
                raise ValueError(f"has the parameter {token}. Write :name, as in the payload.")
            case "comment" if "/*" in token[2:]:
                raise ValueError("has a comment in a comment. Take one of them out.")
            case "end":
                is_over = True
            case "name":
                names.append(found["name"])
                parts.append(f"%({found['name']})s")
            case _:
                words.extend([token.lower()] * (kind == "word"))
                parts.append(token.replace("%", "%%"))
    rest = statement[end:]
    if is_over and rest.strip():
        raise ValueError(_SEVERAL)
    parts.append(rest.replace("%", "%%"))
    _check_kind(words[0] if words else "", names)
    return SqlStatement("".join(parts).strip(), tuple(dict.fromkeys(names)))


def _check_kind(first: str, names: list[str]) -> None:
    if first not in KINDS:
        allowed = ", ".join(sorted(KINDS)).upper()
        begins = f"begins with {first.upper():.30}" if first else "is empty"
        raise ValueError(f"{begins}. Allowed: {allowed}.")
    if names and first in _WHOLE:
        raise ValueError(f"has parameters, which {first.upper()} cannot take. CALL a procedure.")


def parameter_texts(payload: Mapping[str, Any]) -> dict[str, str | None]:
    """Return each value as ``payload ->> 'key'`` has it: null is NULL, a string itself, else JSON.

    So PostgreSQL reads it as the type that its place in the statement asks for.
    """
    return {
        key: value if value is None or isinstance(value, str) else json.dumps(value)
        for key, value in payload.items()
    }
