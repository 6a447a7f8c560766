"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import codecs
import copy
import dataclasses
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, NoReturn, TypeVar

import click

from tasks_app.domain.durations import NAME_ITS_MODULE, distance_in_words, to_the_second
from tasks_app.domain.errors import NO
from tasks_app.domain.finding import Finding
from tasks_app.domain.tasks.error_text import printable, printable_json

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
    return to_the_second(moment) if wide else distance_in_words(moment, now)


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
    return "" if at is None else distance_in_words(at, now)


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


T = TypeVar("T")

as_json = click.option("--json", "json_", is_flag=True, help="Print JSON.")


def also(command: click.Command) -> click.Command:
    """Return the command as it goes by an older name, which no list shows."""
    older = copy.copy(command)
    older.hidden = True
    return older


def print_json(value: Any) -> None:
    """Print records, or lists of them, as JSON; instants are ISO 8601 in UTC."""
    utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    text = json.dumps(value, default=_plain, indent=2, ensure_ascii=not utf8)
    click.echo(printable_json(text))


def as_here(words: str) -> str:
    """Return them with our commands as one types them here: in Django they are ``manage.py``'s."""
    context = click.get_current_context(silent=True)
    program = (context.find_root().info_name or "") if context else ""
    if not program.endswith("tasks_app"):
        return words
    words = words.replace(NAME_ITS_MODULE, "Put it into the tasks.py of an installed app")
    return re.sub(r"\btasks-app(?= [a-z])", "python manage.py tasks_app", words)


def found_here(finding: Finding) -> Finding:
    """Do the same for a finding."""
    fact, advice = as_here(finding.fact), as_here(finding.advice)
    return dataclasses.replace(finding, fact=fact, advice=advice)


def say(words: str, *, err: bool = False) -> None:
    """Print words that may name a command of ours."""
    click.echo(as_here(words), err=err)


def answer(words: str, value: Any, *, json_: bool) -> None:
    """Print what a command did: words for people, or one JSON document."""
    print_json(value) if json_ else say(words)


def refuse(words: str) -> NoReturn:
    """Say on stderr why the answer is no, and exit with 1."""
    say(words, err=True)
    sys.exit(NO)


def print_list(
    found: Sequence[T], columns: Sequence[str], line: Callable[[T], Sequence[Any]], *, json_: bool
) -> None:
    """Print records as they are for programs, as a table of their ``line`` for people."""
    print_json(found) if json_ else print_table(columns, map(line, found))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table as wide as the terminal, whose cells are folded; of any width in a pipe."""
    from rich.cells import chop_cells, set_cell_size  # noqa: PLC0415  `work` runs without rich

    given = [list(row) for row in rows]
    table = [list(columns), *([cell(value) for value in row] for row in given)]
    if len(table) == 1:
        click.echo(NONE)
        return
    whole = [
        any(isinstance(value, datetime) for value in column) for column in zip(*given, strict=True)
    ]
    may = [name not in ("id", "state") and not at for name, at in zip(columns, whole, strict=True)]
    widths = fitting(table, may)
    lines = []
    for cells in table:
        folded = (
            [
                part
                for line in text.expandtabs().split("\n")
                for part in chop_cells(line, size) or [""]
            ]
            for text, size in zip(cells, widths, strict=True)
        )
        for parts in zip_longest(*folded, fillvalue=""):
            sized = (set_cell_size(part, size) for part, size in zip(parts, widths, strict=True))
            lines.append(GAP.join(sized).rstrip())
    click.echo("\n".join(lines))


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Print one fact per line; those that are None are left out."""
    for name, value in fields:
        if value is not None:
            click.echo(f"{name:<20} {cell(value)}")


def cell(value: Any) -> str:
    """Return a value as people read it; None is the empty text."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return to_the_second(value)
    if isinstance(value, dict | list):
        return printable(json.dumps(value, ensure_ascii=False))
    return printable(str(value))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value)
