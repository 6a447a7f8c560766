"""Sift: find the rows that fail by halving, and do all others. Knows no database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def sift(
    rows: Sequence[Any],
    do: Callable[[Sequence[Any]], None],
    judge: Callable[[Any, Exception], None],
    may_fail: Callable[[Exception], bool],
) -> None:
    """Do the rows, in order; of a part that fails the halves, down to single rows, to be judged.

    ``do`` leaves nothing behind when it raises. What ``judge`` raises comes out, as does what may
    not fail: it is no single row's fault.
    """
    parts = [rows]
    while parts:
        part = parts.pop()
        try:
            do(part)
        except Exception as error:
            if not may_fail(error):
                raise
            if len(part) == 1:
                judge(part[0], error)
                continue
            middle = len(part) // 2
            parts += [part[middle:], part[:middle]]
