"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import codecs
import copy
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, NoReturn, TypeVar

import click

from tasks_app.cli import listing
from tasks_app.domain.errors import NO
from tasks_app.domain.explain.words import NAME_ITS_MODULE, exact
from tasks_app.domain.finding import Finding
from tasks_app.domain.tasks.error_text import printable, printable_json

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
        click.echo(listing.NONE)
        return
    whole = [
        any(isinstance(value, datetime) for value in column) for column in zip(*given, strict=True)
    ]
    may = [name not in ("id", "state") and not at for name, at in zip(columns, whole, strict=True)]
    widths = listing.fitting(table, may)
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
            lines.append(listing.GAP.join(sized).rstrip())
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
        return exact(value)
    if isinstance(value, dict | list):
        return printable(json.dumps(value, ensure_ascii=False))
    return printable(str(value))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value)
