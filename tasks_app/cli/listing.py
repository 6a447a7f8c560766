"""Lists that fit a terminal: one line for each, with what there is to say of it beside or below.

No word is broken: a cell that is too long ends in … , and what is below ends at a word.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime

import click

from tasks_app.domain.explain.words import distance

GAP, INDENT = "  ", "    "
NARROWEST = 8
"""What a cell may be cut to; narrower it would say nothing."""

as_wide = click.option(
    "--wide", is_flag=True, help="All columns, exact instants, lines of any length."
)


def width() -> int | None:
    """Return how many columns there are; None: any number, as in a pipe."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given):
        return int(given)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def lay_out(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    remarks: Sequence[str],
    *,
    remark: str,
    most: int | None,
    cut: Sequence[str] = (),
) -> Iterator[str]:
    """Yield rows within ``most`` columns; remarks stand beside them if all of them fit there.

    Columns without any value are left out. What is in ``cut`` is cut where there is no room.
    """
    used = [n for n in range(len(columns)) if not n or any(row[n] for row in rows)]
    table = [[columns[n] for n in used], *([_plain(row[n]) for n in used] for row in rows)]
    remarks = [" ".join(_plain(each).split()) for each in remarks]
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


def age(at: datetime | None, now: datetime) -> str:
    """Return how far away an instant is."""
    return "" if at is None else distance(at, now)


def _shrunk(natural: Sequence[int], may: Sequence[bool], most: int) -> list[int]:
    """Take from the widest of those that may be cut until all fit, or none can give more."""
    widths = list(natural)
    while sum(widths) + len(GAP) * (len(widths) - 1) > most:
        some = [n for n, cuts in enumerate(may) if cuts and widths[n] > NARROWEST]
        if not some:
            break
        widths[max(some, key=widths.__getitem__)] -= 1
    return widths


def _plain(text: str) -> str:
    """Keep what would move the cursor, or begin a new line, from the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def _length(text: str) -> int:
    from rich.cells import cell_len  # noqa: PLC0415  who runs tasks has none

    return cell_len(text)


def _cell(value: str, size: int) -> str:
    from rich.cells import set_cell_size  # noqa: PLC0415  as above

    if _length(value) <= size:
        return set_cell_size(value, size)
    return set_cell_size(value, size - 1) + "…"


def _words(text: str, most: int) -> str:
    """Return as many words as fit; a single one that does not is cut."""
    if _length(text) <= most:
        return text
    kept = ""
    for word in text.split():
        longer = f"{kept} {word}".lstrip()
        if _length(longer) > most - 2:
            break
        kept = longer
    return f"{kept} …" if kept else _cell(text, most)
