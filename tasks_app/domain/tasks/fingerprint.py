"""Fingerprints: errors with one cause have one, whatever their ids, values, paths and line numbers.

It is made of what is stored of an error, so that the row of an old error gets the same one as the
error that is raised today.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from tasks_app.domain.tasks.run import Cause

SIZE = 8
"""Bytes."""
MOST_FRAMES = 5
CIRCLE = 2
"""A function that is called more often in one traceback calls itself, be it by others."""
LONGEST_MESSAGE = 300

_FRAME = re.compile(r'^  File "(?P<file>.*)", line \d+, in (?P<function>.*)$', re.MULTILINE)
_FOREIGN = re.compile(
    r"""[\\/](site|dist)-packages[\\/]      # a library
    | [\\/]lib[\\/]python\d[^\\/]*[\\/]     # the standard library
    | [\\/]tasks_app[\\/](batch|broker|domain|pool|runtime)[\\/]
    | ^<frozen\ """,
    re.VERBOSE,
)
_ROW = re.compile(r"\n(DETAIL|CONTEXT|HINT|LINE \d|\[SQL|\[parameters|\(Background).*", re.DOTALL)
"""What drivers and SQLAlchemy put behind the sentence: the row, the statement, its parameters."""
_VALUES = (
    (re.compile(r"""(?<!\w)(['"`]).{0,2000}?(?:\1(?!\w)|…$)""", re.DOTALL), "'…'"),
    (re.compile(r"[A-Za-z][\w+.-]*://[^\s,;)\]}>]+"), "<url>"),
    (re.compile(r"[\w.+-]+@[\w-][\w.-]*"), "<address>"),
    (re.compile(r"(?<![\w.])(?:[A-Za-z]:\\|~?/|\.{1,2}/)[^\s:,;()\[\]{}<>]+"), "<path>"),
    (re.compile(r"(?<![A-Za-z0-9])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"), "#"),
    (re.compile(r"(?<![A-Za-z0-9])0[xX][0-9a-fA-F]+(?![A-Za-z0-9])"), "#"),
    (re.compile(r"(?<![A-Za-z0-9])(?<!\d\.)(?=\d*[a-fA-F])[0-9a-fA-F]{8,}(?![A-Za-z0-9])"), "#"),
    (re.compile(r"(?:(?<![\w#])[-+])?\d+(?:[.,:_-]?\d+)*(?:[eE][-+]?\d+)?"), "#"),
    (re.compile(r"\(# sub-exceptions?\)"), "(# sub-exceptions)"),
    (re.compile(r"(#|'…')(?:, ?\1)+"), r"\1"),
    (re.compile(r"\s+"), " "),
)
"""What differs from task to task, and what stands for it; in this order."""
_VERSION = re.compile(r"[0-9a-fA-F]{7,}|\d+")


class ErrorTraits(NamedTuple):
    """What of an error does not differ from task to task."""

    fingerprint: bytes
    kind: str
    message: str
    """Its values are replaced."""
    frames: tuple[str, ...]
    """Of the user's code, as module:function, the innermost last."""


@lru_cache(256)  # many tasks fail alike at a time
def traits_of(cause: Cause) -> ErrorTraits:
    """Return what an error has in common with others of its cause."""
    message, frames = without_values(cause.message), _frames(cause.traceback or "")
    text = "\0".join((cause.kind, message, *frames))
    digest = sha256(text.encode("utf-8", "replace")).digest()
    return ErrorTraits(digest[:SIZE], cause.kind, message, frames)


def fingerprint_of(cause: Cause) -> bytes:
    """Return the fingerprint of an error, 8 bytes."""
    return traits_of(cause).fingerprint


def without_values(message: str) -> str:
    """Return a message without numbers, ids, quoted texts, paths and addresses."""
    text = _ROW.sub("", message)
    for pattern, word in _VALUES:
        text = pattern.sub(word, text)
    return text.strip()[:LONGEST_MESSAGE]


def parse_fingerprint(text: str) -> bytes:
    """Return a fingerprint that somebody wrote as 16 hexadecimal digits.

    Raises:
        ValueError: it is none.
    """
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != SIZE:
        raise ValueError(f"{text!r:.40} is no fingerprint. Give the 16 digits that a list shows.")
    return found


def _frames(traceback: str) -> tuple[str, ...]:
    named: list[str] = []
    for found in _FRAME.finditer(traceback):
        if _FOREIGN.search(found["file"]):
            continue
        name = f"{_module(found['file'])}:{found['function']}"
        if not named or named[-1] != name:
            named.append(name)
    distinct = list(dict.fromkeys(reversed(named)))[:MOST_FRAMES][::-1]
    # Where calls go in a circle, the innermost one is an accident.
    circles = max(Counter(named).values(), default=0) > CIRCLE
    return tuple(sorted(distinct) if circles else distinct)


def _module(file: str) -> str:
    """Return a file's name and its folder's: where the code is unpacked differs by deploy."""
    *folders, name = re.split(r"[\\/]", file.removesuffix(".py"))
    parts = folders[-1:] if name == "__init__" else [*folders[-1:], name]
    return _VERSION.sub("#", ".".join(filter(None, parts)))
