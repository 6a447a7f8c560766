"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import codecs
import copy
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar

import click

from tasks_app.domain.errors import NO
from tasks_app.domain.explain.words import exact
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


def answer(words: str, value: Any, *, json_: bool) -> None:
    """Print what a command did: words for people, or one JSON document."""
    print_json(value) if json_ else click.echo(words)


def refuse(words: str) -> NoReturn:
    """Say on stderr why the answer is no, and exit with 1."""
    click.echo(words, err=True)
    sys.exit(NO)


def print_list(
    found: Sequence[T], columns: Sequence[str], line: Callable[[T], Sequence[Any]], *, json_: bool
) -> None:
    """Print records as they are for programs, as a table of their ``line`` for people."""
    if json_:
        print_json(found)
    elif found:
        print_table(columns, map(line, found))
    else:
        click.echo("There are none.")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table as wide as the terminal; 200 columns in a pipe."""
    from rich.console import Console  # noqa: PLC0415  `work` must run without the extra cli
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("id", "state"))
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200, highlight=False).print(
        table
    )


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
