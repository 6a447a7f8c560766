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
from tasks_app.domain.errors import EXIT_NO
from tasks_app.domain.finding import Finding
from tasks_app.domain.tasks.error_text import printable, printable_json

GAP, INDENT = "  ", "    "
NONE = "There are none."
NARROWEST = 8  # a narrower cell would show too little
T = TypeVar("T")

json_option = click.option("--json", "json_", is_flag=True, help="Print JSON.")
wide_option = click.option(
    "--wide", is_flag=True, help="All columns, exact instants, lines of any length."
)


def most_option(default: int, help: str = "At most this many.") -> Callable[[Any], Any]:  # noqa: A002  click's word
    return click.option(
        "--most", type=click.IntRange(1, 1000), default=default, show_default=True, help=help
    )


def hidden_alias(command: click.Command) -> click.Command:
    """Return the command for an older name, which no list shows."""
    older = copy.copy(command)
    older.hidden = True
    return older


def with_program_name(words: str) -> str:
    """Write our commands as the user types them: in Django they belong to ``manage.py``."""
    context = click.get_current_context(silent=True)
    program = (context.find_root().info_name or "") if context else ""
    if not program.endswith("tasks_app"):
        return words
    words = words.replace(NAME_ITS_MODULE, "Put it into the tasks.py of an installed app")
    return re.sub(r"\btasks-app(?= [a-z])", "python manage.py tasks_app", words)


def finding_with_program_name(finding: Finding) -> Finding:
    fact, advice = with_program_name(finding.fact), with_program_name(finding.advice)
    return dataclasses.replace(finding, fact=fact, advice=advice)


def print_text(words: str, *, err: bool = False) -> None:
    """Print words that may name a command of ours."""
    click.echo(with_program_name(words), err=err)


def print_answer(words: str, value: Any, *, json_: bool) -> None:
    print_json(value) if json_ else print_text(words)


def refuse(words: str) -> NoReturn:
    """Print on stderr why the answer is no, and exit with 1."""
    print_text(words, err=True)
    sys.exit(EXIT_NO)


def shown_ids(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids[:20])) + (" …" if len(ids) > 20 else "")  # noqa: PLR2004


def print_json(value: Any) -> None:
    """Print records, or lists of them, as JSON; instants are ISO 8601 in UTC."""
    utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    text = json.dumps(value, default=_plain, indent=2, ensure_ascii=not utf8)
    click.echo(printable_json(text))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value)


def print_list(
    found: Sequence[T], columns: Sequence[str], line: Callable[[T], Sequence[Any]], *, json_: bool
) -> None:
    """Print records as JSON, or as a table of their ``line``."""
    print_json(found) if json_ else print_table(columns, map(line, found))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table as wide as the terminal, whose cells are folded; of any width in a pipe."""
    from rich.cells import chop_cells, set_cell_size  # noqa: PLC0415  `work` runs without rich

    given = [list(row) for row in rows]
    if not given:
        click.echo(NONE)
        return
    table = [list(columns), *([cell(value) for value in row] for row in given)]
    instants = [any(isinstance(each, datetime) for each in col) for col in zip(*given, strict=True)]
    cuts = [
        name not in ("id", "state") and not at for name, at in zip(columns, instants, strict=True)
    ]
    widths = [
        max(_length(line) for text in column for line in text.expandtabs().split("\n"))
        for column in zip(*table, strict=True)
    ]
    if (most := width()) is not None:
        widths = _shrunk(widths, cuts, most)
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
    """Print one fact on each line, without those that are None."""
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


def format_instant(at: datetime | None, now: datetime, *, wide: bool = False) -> str:
    """Return how far away an instant is; ``wide``: the instant itself."""
    if at is None:
        return ""
    return to_the_second(at) if wide else distance_in_words(at, now)


def print_rows(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    remarks: Sequence[str],
    *,
    remark: str,
    cut: Sequence[str] = (),
    wide: bool = False,
) -> None:
    """Print :func:`table_lines` for this terminal; ``wide``: lines of any length."""
    most = None if wide else width()
    click.echo("\n".join(table_lines(columns, rows, remarks, remark=remark, most=most, cut=cut)))


def table_lines(
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
    widths = [max(map(_length, column)) for column in zip(*table, strict=True)]
    longest = max(map(_length, [remark, *remarks]), default=0) if any(remarks) else 0
    beside = most is None or sum(widths) + len(GAP) * len(widths) + longest <= most
    if not beside:
        widths = _shrunk(widths, [columns[n] in cut for n in used], most or 0)
    for number, cells in enumerate(table):
        line = GAP.join(_sized(text, size) for text, size in zip(cells, widths, strict=True))
        note = remarks[number - 1] if number else remark if longest else ""
        if beside:
            yield f"{line}{GAP}{note}".rstrip()
            continue
        yield line.rstrip()
        if number and note:
            yield INDENT + _first_words(note, max(NARROWEST, (most or 0) - len(INDENT)))


def width() -> int | None:
    """Return the width of the terminal in columns; None: unlimited, as in a pipe."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given):
        return int(given)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _shrunk(natural: Sequence[int], cuts: Sequence[bool], most: int) -> list[int]:
    """Narrow the widest of the columns that may be cut until all fit, or all are narrow."""
    widths = list(natural)
    while sum(widths) + len(GAP) * (len(widths) - 1) > most:
        some = [n for n, may in enumerate(cuts) if may and widths[n] > NARROWEST]
        if not some:
            break
        widths[max(some, key=widths.__getitem__)] -= 1
    return widths


def _length(text: str) -> int:
    from rich.cells import cell_len  # noqa: PLC0415  `work` runs without rich

    return cell_len(text)


def _sized(value: str, size: int) -> str:
    from rich.cells import set_cell_size  # noqa: PLC0415

    if _length(value) <= size:
        return set_cell_size(value, size)
    return set_cell_size(value, size - 1) + "…"


def _first_words(text: str, most: int) -> str:
    """Return as many words as fit; a first word that does not fit is cut."""
    if _length(text) <= most:
        return text
    kept = ""
    for word in text.split():
        longer = f"{kept} {word}".lstrip()
        if _length(longer) > most - 2:
            break
        kept = longer
    return f"{kept} …" if kept else _sized(text, most)
