"""What people see during the day: a table that refreshes, or plain lines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from shop.board import counts_of, counts_table
from shop.figures import Line, total

EVERY_S = 2.0
COLUMNS = ("later", "due", "running", "done", "retried", "skipped", "cancelled", "failed")


class View(Protocol):
    """Shows how far the day is; ends with its ``with``."""

    def show(self, seconds: float, news: str, lines: Sequence[Line]) -> None:
        """Show the pools now."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""


def make_view(console: Console, *, live: bool) -> View:
    """Return the table for a terminal, else the plain lines."""
    return LiveTable(console) if live and console.is_terminal else PlainLines(console)


class LiveTable:
    """Redraws itself in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=True)

    def show(self, seconds: float, news: str, lines: Sequence[Line]) -> None:
        """Draw."""
        self._live.update(_table(f"{seconds:5.1f} s   {news}", lines))

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)


class PlainLines:
    """One line now and then, fit for a log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_at = 0.0

    def show(self, seconds: float, news: str, lines: Sequence[Line]) -> None:
        """Print, if the last line is old enough."""
        if time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + EVERY_S
        now = total(lines)
        self._console.print(
            f"  {seconds:4.0f} s  later {now.later:3}  due {now.due:3}  running {now.running:2}"
            f"  done {now.done:4}  retried {now.retried:3}  failed {now.failed:2}   {news}",
            soft_wrap=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return


def _table(news: str, lines: Sequence[Line]) -> RenderableType:
    table = counts_table(COLUMNS)
    for line in [*lines, total(lines)]:
        table.add_row(*counts_of(line, COLUMNS), style="bold" if line.name == "all" else None)
    return Group(Text(news, style="cyan"), table)
