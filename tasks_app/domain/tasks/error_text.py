"""Exceptions as text that can always be stored: bounded, clean, without local variables.

An exception may be hostile: its ``str()`` may raise, be huge, or hold what no column accepts.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from tasks_app.domain.tasks.run import Cause

if TYPE_CHECKING:
    from types import TracebackType

LONGEST_KIND = 200
LONGEST_MESSAGE = 2_000
LONGEST_TRACEBACK = 8_000
LONGEST_FRAME = 2_000
MOST_FRAMES = 40
_TRACEBACK = vars(BaseException)["__traceback__"]
"""The real one: a class may have a property of that name, which raises."""
_OURS = str(Path(__file__).parents[1])
"""People look for their own frames; how we called them is always the same."""


def cause_of(error: BaseException) -> Cause:
    """Describe an exception; never raises."""
    return Cause(
        clean(_kind(type(error)), LONGEST_KIND),
        clean(_message(error), LONGEST_MESSAGE),
        _frames(_TRACEBACK.__get__(error)),
    )


def brief(error: BaseException) -> str:
    """Name an error for a log: its first line, so neither SQL and parameters nor row contents.

    A driver's error puts the failing row, payload and all, into the lines behind the first.
    """
    cause = getattr(error, "orig", None) or error
    lines = _message(cause).splitlines()
    return clean(f"{type(cause).__name__}: {lines[0] if lines else ''}", 200)


def clean(text: str, longest: int) -> str:
    """Return ``text`` without NUL and lone surrogates, cut to ``longest`` characters."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return cut.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


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
        frames = [
            each
            for each in traceback.walk_tb(trace)
            if not each[0].f_code.co_filename.startswith(_OURS)
        ]
        chosen = traceback.StackSummary.extract(iter(frames[-MOST_FRAMES:]))
        lines = [clean(line, LONGEST_FRAME) for line in chosen.format()]
    except Exception:
        return None
    text = "".join(lines)  # what is too long loses its beginning: the fault is at the end
    return text if len(text) <= LONGEST_TRACEBACK else "…" + text[1 - LONGEST_TRACEBACK :]
