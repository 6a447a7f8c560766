"""Lists that fit a terminal: one line for each row, with its remark beside or below it.

A cell that is too long ends in …; a remark below ends at a word.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime

import click

from tasks_app.domain.explain.words import distance, exact
from tasks_app.domain.tasks.error_text import printable

GAP, INDENT = "  ", "    "
NONE = "There are none."
NARROWEST = 8
"""What a cell may be cut to: a narrower one would say nothing."""

as_wide = click.option(
    "--wide", is_flag=True, help="All columns, exact instants, lines of any length."
)


def width() -> int | None:
    """Return the width of the terminal in columns; None: unlimited, as in a pipe."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given):
        return int(given)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def echo(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    remarks: Sequence[str],
    *,
    remark: str,
    cut: Sequence[str] = (),
    wide: bool = False,
) -> None:
    """Print what :func:`lay_out` yields for this terminal; ``wide``: lines of any length."""
    most = None if wide else width()
    click.echo("\n".join(lay_out(columns, rows, remarks, remark=remark, most=most, cut=cut)))


def at(moment: datetime | None, now: datetime, *, wide: bool) -> str:
    """Return how far away an instant is; ``wide``: the instant itself."""
    if moment is None:
        return ""
    return exact(moment) if wide else distance(moment, now)


def lay_out(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    remarks: Sequence[str],
    *,
    remark: str,
    most: int | None,
    cut: Sequence[str] = (),
) -> Iterator[str]:
    """Yield lines of at most ``most`` columns; remarks stand beside the rows if all fit there.

    A column without any value is left out. Only the columns in ``cut`` are cut.
    """
    if not rows:
        yield NONE
        return
    used = [n for n in range(len(columns)) if not n or any(row[n] for row in rows)]
    table = [
        [columns[n] for n in used],
        *([printable(row[n], keep="") for n in used] for row in rows),
    ]
    remarks = [printable(" ".join(each.split()), keep="") for each in remarks]
    natural = [max(map(_length, column)) for column in zip(*table, strict=True)]
    longest = max(map(_length, [remark, *remarks]), default=0) if any(remarks) else 0
    beside = most is None or sum(natural) + len(GAP) * len(natural) + longest <= most
    widths = natural if beside else _shrunk(natural, [columns[n] in cut for n in used], most or 0)
    for number, cells in enumerate(table):
        line = GAP.join(_cell(cell, size) for cell, size in zip(cells, widths, strict=True))
        said = remarks[number - 1] if number else remark if longest else ""
        if beside:
            yield f"{line}{GAP}{said}".rstrip()
            continue
        yield line.rstrip()
        if number and said:
            yield INDENT + _words(said, max(NARROWEST, (most or 0) - len(INDENT)))


def fitting(table: Sequence[Sequence[str]], may: Sequence[bool]) -> list[int]:
    """Return widths at which the columns fit this terminal, if those that may are narrowed."""
    natural = [
        max(_length(line) for cell in column for line in cell.expandtabs().split("\n"))
        for column in zip(*table, strict=True)
    ]
    most = width()
    return natural if most is None else _shrunk(natural, may, most)


def age(at: datetime | None, now: datetime) -> str:
    return "" if at is None else distance(at, now)


def _shrunk(natural: Sequence[int], may: Sequence[bool], most: int) -> list[int]:
    """Narrow the widest of those that may be cut until all fit, or none can give more."""
    widths = list(natural)
    while sum(widths) + len(GAP) * (len(widths) - 1) > most:
        some = [n for n, cuts in enumerate(may) if cuts and widths[n] > NARROWEST]
        if not some:
            break
        widths[max(some, key=widths.__getitem__)] -= 1
    return widths


def _length(text: str) -> int:
    from rich.cells import cell_len  # noqa: PLC0415  `work` must run without the extra cli

    return cell_len(text)


def _cell(value: str, size: int) -> str:
    from rich.cells import set_cell_size  # noqa: PLC0415

    if _length(value) <= size:
        return set_cell_size(value, size)
    return set_cell_size(value, size - 1) + "…"


def _words(text: str, most: int) -> str:
    """Return as many words as fit; a first word that does not fit is cut."""
    if _length(text) <= most:
        return text
    kept = ""
    for word in text.split():
        longer = f"{kept} {word}".lstrip()
        if _length(longer) > most - 2:
            break
        kept = longer
    return f"{kept} …" if kept else _cell(text, most)
