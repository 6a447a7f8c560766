"""Exceptions as text that can be stored, their fingerprints, and loggers that never raise."""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections import Counter
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from json import dumps
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tasks_app.domain.tasks.run import Cause

LONGEST_KIND = 200
LONGEST_MESSAGE = 2_000
LONGEST_TRACEBACK = 8_000
LONGEST_FRAME = 2_000
MOST_FRAMES = 40
# The real attributes: a class may have properties of these names, which raise.
_TRACEBACK = vars(BaseException)["__traceback__"]
_CAUSE, _CONTEXT = (vars(BaseException)[name] for name in ("__cause__", "__context__"))
_LINE_END = re.compile(r"\n|\\n")  # in a text, or in the repr of one
_OURS = f"{Path(__file__).parents[2]}{os.sep}"  # our own frames are left out: they never differ
# C0, C1, ends of lines, and changes of the direction of text.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def cause_of(error: BaseException) -> Cause:
    """Return an exception's kind, message and frames; never raises."""
    return Cause(
        _shown(_kind(type(error)), LONGEST_KIND, keep=""),
        _shown(_message(error), LONGEST_MESSAGE),
        _frames(_TRACEBACK.__get__(error)),
    )


def without_row_details(text: str, error: BaseException) -> str:
    """Return an error's text without the additions of a database to it, or to its causes.

    DETAIL, CONTEXT and the like quote parts of rows and statements.
    """
    try:
        for each in _chain(error):
            diag = getattr(each, "diag", None)
            if diag is not None:
                for part in (diag.message_detail, diag.context, diag.internal_query):
                    text = text.replace(part, "***") if part else text
                text = _LINE_END.split(text, maxsplit=1)[0]
    except Exception:
        return "***"
    return text


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error, its causes, and the errors that were being handled when it was raised."""
    found = [error]
    for each in found:  # which grows
        behind = (_CAUSE.__get__(each), _CONTEXT.__get__(each), *getattr(each, "exceptions", ()))
        found += [one for one in behind if one is not None and one not in found]
    return found


def first_line(error: BaseException) -> str:
    """Return an error's first line for a log: no SQL, no parameters, no row."""
    cause = getattr(error, "orig", None) or error
    lines = _message(cause).splitlines()
    return _shown(f"{type(cause).__name__}: {lines[0] if lines else ''}", 200, keep="")


def storable_text(text: str, longest: int) -> str:
    """Return ``text`` without NUL and lone surrogates, cut to ``longest`` characters."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return cut.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def printable(text: str, *, keep: str = "\n\t") -> str:
    r"""Return ``text`` with control characters but ``keep`` as in Python's source, e.g. ``\x1b``.

    Raw ones could control a terminal, or forge a line of a log.
    """
    return _CONTROLS.sub(lambda found: found[0] if found[0] in keep else repr(found[0])[1:-1], text)


def printable_json(text: str) -> str:
    """Return an equal JSON text whose strings have no control characters."""
    return _CONTROLS.sub(
        lambda found: found[0] if found[0] == "\n" else dumps(found[0])[1:-1], text
    )


def _shown(text: str, longest: int, keep: str = "\n\t") -> str:
    return storable_text(printable(storable_text(text, longest), keep=keep), longest)


def _kind(of: type[BaseException]) -> str:
    try:
        module = str(of.__module__)
        ours = module == "builtins" or module.startswith("tasks_app.")
        return of.__qualname__ if ours else f"{module}.{of.__qualname__}"
    except BaseException:
        return "an exception whose class hides its name"


def _message(error: BaseException) -> str:
    try:
        return str.__str__(str(error))  # a subclass of str could be hostile, too
    except BaseException as second:
        return f"(its text cannot be read: {type(second).__name__})"


def _frames(trace: TracebackType | None) -> str | None:
    if trace is None:
        return None
    try:
        frames = traceback.walk_tb(trace)
        foreign = [each for each in frames if not each[0].f_code.co_filename.startswith(_OURS)]
        chosen = traceback.StackSummary.extract(iter(foreign[-MOST_FRAMES:]))
        lines = [_shown(line, LONGEST_FRAME) for line in chosen.format()]
    except Exception:
        return None
    text = "".join(lines)  # a long one loses its beginning: the fault is at the end
    return text if len(text) <= LONGEST_TRACEBACK else "…" + text[1 - LONGEST_TRACEBACK :]


FINGERPRINT_SIZE = 8  # bytes
MOST_FINGERPRINT_FRAMES = 5
CIRCLE = 2  # a function with more calls in one traceback is recursive
LONGEST_FINGERPRINT_MESSAGE = 300
_FRAME = re.compile(r'^  File "(?P<file>.*)", line \d+, in (?P<function>.*)$', re.MULTILINE)
_FOREIGN = re.compile(
    r"""[\\/](site|dist)-packages[\\/]      # a library
    | [\\/]lib[\\/]python\d[^\\/]*[\\/]     # the standard library
    | [\\/]tasks_app[\\/](batch|broker|domain|pool|runtime)[\\/]
    | ^<frozen\ """,
    re.VERBOSE,
)
# Additions of drivers and SQLAlchemy: the row, the statement, its parameters.
_ROW = re.compile(r"\n(DETAIL|CONTEXT|HINT|LINE \d|\[SQL|\[parameters|\(Background).*", re.DOTALL)
# The parts that differ from task to task, and their replacements; in this order.
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
_VERSION = re.compile(r"[0-9a-fA-F]{7,}|\d+")


class ErrorTraits(NamedTuple):
    """The parts of an error that do not differ from task to task."""

    fingerprint: bytes
    kind: str
    message: str  # its values are replaced
    frames: tuple[str, ...]  # of the user's code, as module:function, the innermost last


@lru_cache(256)  # many tasks fail alike at a time
def traits_of(cause: Cause) -> ErrorTraits:
    """Return the traits that an error shares with others of the same cause."""
    message, frames = without_values(cause.message), _frames_of_text(cause.traceback or "")
    text = "\0".join((cause.kind, message, *frames))
    digest = sha256(text.encode("utf-8", "replace")).digest()
    return ErrorTraits(digest[:FINGERPRINT_SIZE], cause.kind, message, frames)


def place_in_code(error: BaseException) -> str | None:
    """Return file and line in the user's code that raise it, or that have no valid syntax."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    names = (f"{each.filename}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__))
    own = [each for each in names if not (_FOREIGN.search(each) or each.startswith(_OURS))]
    return own[-1] if own else None


def fingerprint_of(cause: Cause) -> bytes:
    return traits_of(cause).fingerprint


def without_values(message: str) -> str:
    """Return a message without numbers, ids, quoted texts, paths and addresses."""
    text = _ROW.sub("", message)
    for pattern, word in _VALUES:
        text = pattern.sub(word, text)
    return text.strip()[:LONGEST_FINGERPRINT_MESSAGE]


def parse_fingerprint(text: str) -> bytes:
    """Return the fingerprint that is written as 16 hexadecimal digits; raises ValueError."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != FINGERPRINT_SIZE:
        raise ValueError(f"{text!r:.40} is not a fingerprint. Give the 16 digits from a list.")
    return found


def _frames_of_text(traceback: str) -> tuple[str, ...]:
    named: list[str] = []
    for found in _FRAME.finditer(traceback):
        if _FOREIGN.search(found["file"]):
            continue
        name = f"{_module(found['file'])}:{found['function']}"
        if not named or named[-1] != name:
            named.append(name)
    distinct = list(dict.fromkeys(reversed(named)))[:MOST_FINGERPRINT_FRAMES][::-1]
    # In a recursion the innermost call is arbitrary.
    circles = max(Counter(named).values(), default=0) > CIRCLE
    return tuple(sorted(distinct) if circles else distinct)


def _module(file: str) -> str:
    """Return folder and name of a file: where the code is unpacked differs by deployment."""
    *folders, name = re.split(r"[\\/]", file.removesuffix(".py"))
    parts = folders[-1:] if name == "__init__" else [*folders[-1:], name]
    return _VERSION.sub("#", ".".join(filter(None, parts)))


class _QuietLogger(logging.Logger):
    def handle(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            super().handle(record)


def quiet_logger(name: str) -> logging.Logger:
    logger = logging.getLogger(name)
    logger.__class__ = _QuietLogger
    return logger
