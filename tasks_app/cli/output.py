"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import codecs
import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click

as_json = click.option("--json", "json_", is_flag=True, help="Print JSON.")


def print_json(value: Any) -> None:
    """Print records, or lists of them, as JSON; instants are ISO 8601 in UTC."""
    utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    click.echo(json.dumps(value, default=_plain, indent=2, ensure_ascii=not utf8))


def answer(words: str, value: Any, *, json_: bool) -> None:
    """Print what a command did: words for people, or one JSON document."""
    print_json(value) if json_ else click.echo(words)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table as wide as the terminal, or as wide as it likes in a pipe."""
    from rich.console import Console  # noqa: PLC0415  who runs tasks has none
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
    """Print one fact per line; what is None is left out."""
    for name, value in fields:
        if value is not None:
            click.echo(f"{name:<20} {cell(value)}")


def cell(value: Any) -> str:
    """Return a value as people read it; nothing is nothing."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value)
