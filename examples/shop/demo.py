"""The demo: servers up, a day of the shop, a table, the checks, servers down."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from sqlalchemy.exc import SQLAlchemyError

from shop import figures
from shop.accidents import Accidents
from shop.closing import invite, judge, spoil
from shop.day import Day
from shop.diary import Diary
from shop.processes import Bell, DiedError, StoppedError
from shop.progress import make_view
from shop.stage import Stage
from tasks_app.domain.config.unreachable import why_unreachable
from tasks_app.domain.config.urls import read_database_url
from tasks_app.embedded.folder import DEFAULT_FOLDER, EmbeddedError
from tasks_app.runtime.handlers.registry import HANDLERS

TICK_S = 0.2
PATIENCE_S = 60.0
"""How long we wait for the next task to end; then the checks say what is missing."""
STOPPED = 130
HELLO = "hello.say"
"""The name of examples/hello.py, whose tasks may lie beside ours."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said."""

    once: bool
    keep: bool
    no_ui: bool
    orders: int
    sabotage: bool
    folder: Path
    database_url: str | None


@click.command()
@click.option(
    "--once", is_flag=True, help="Stop everything after the checks, as it does without a terminal."
)
@click.option("--keep", is_flag=True, help="Leave PostgreSQL and Valkey running at the end.")
@click.option("--no-ui", is_flag=True, help="Plain lines instead of a table that refreshes.")
@click.option(
    "--orders", type=click.IntRange(10, 1000), default=100, show_default=True, help="How many."
)
@click.option("--sabotage", is_flag=True, help="Spoil one row, to see the checks fail.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="Where everything lives.",
)
@click.option(
    "--database-url",
    metavar="URL",
    callback=lambda _context, _option, url: _read(url),
    help="A PostgreSQL of yours, with an empty database; else the demo brings one.",
)
def main(**options: Any) -> None:
    """Watch a shop's day on real PostgreSQL, Valkey and Celery, in pages, and check its result."""
    sys.exit(run(Options(**options)))


def run(options: Options) -> int:
    """Run the demo; return 0 if every check holds."""
    console, bell = Console(highlight=False), Bell()
    console.print(f"[bold]tasks-app demo[/]: everything lives in {options.folder}", soft_wrap=True)
    stage = Stage(options.folder, console, keep=options.keep, database_url=options.database_url)
    held: bool | None = None
    try:
        day = _prepare(stage, bell, options)
        _live(day, stage, console, bell, options)
        if options.sabotage:
            spoil(stage)
        held = judge(stage, day.diary, console)
        if not options.once and _somebody_watches():
            invite(stage, day.diary, console)
            _wait_for_the_bell(stage, bell)
    except StoppedError:
        console.print("\nStopping …")
        return STOPPED if held is None else int(not held)
    except (DiedError, EmbeddedError) as error:
        console.print(f"[red]✘[/] {error}", soft_wrap=True)
        return 1
    except SQLAlchemyError as error:
        console.print(f"[red]✘[/] {escape(_why(error, options))}", soft_wrap=True)
        return 1
    except OSError as error:
        console.print(f"[red]✘[/] {error}. Run the demo again.", soft_wrap=True)
        return 1
    finally:
        stage.down()
    return int(not held)


def _somebody_watches() -> bool:
    """Whether there is a terminal on both ends: without one nobody can press Ctrl-C."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _prepare(stage: Stage, bell: Bell, options: Options) -> Day:
    """Prepare a new day; the workers start last."""
    stage.build((*_names(), HELLO))
    stage.tell_of_earlier_runs()
    bell.wait(0)
    day = Day(stage.engine, stage.mail, Diary(names=_names()), options.orders)
    day.open()
    stage.start_work(bell)
    return day


def _live(day: Day, stage: Stage, console: Console, bell: Bell, options: Options) -> None:
    """Run the day until the last task is over, or the time-out."""
    begin, moved_s, moved = time.monotonic(), 0.0, 0
    accidents = Accidents(stage, day.diary)
    with make_view(console, live=not options.no_ui) as view:
        while (elapsed := time.monotonic() - begin) < moved_s + PATIENCE_S:
            day.step(elapsed)
            accidents.step(elapsed)
            stage.look()
            with stage.engine.connect() as connection:
                lines = figures.lines(connection, day.diary)
            now = figures.total(lines)
            view.show(elapsed, _news(stage, day.diary), lines)
            if now.done:  # it takes a core for a while
                stage.flower.open()
            if day.is_over and accidents.are_over and now.unfinished == 0:
                break
            if moved != (moved := now.done + now.retried + now.failed):
                moved_s = elapsed
            bell.wait(TICK_S)
    stage.flower.open()
    console.print(f"  The day is over after {time.monotonic() - begin:.1f} s.\n")


def _wait_for_the_bell(stage: Stage, bell: Bell) -> None:
    while True:
        stage.look()
        bell.wait(TICK_S)


def _news(stage: Stage, diary: Diary) -> str:
    orders = f"orders {len(diary.orders)}, rolled back {len(diary.rolled_back)}"
    return f"{orders}, mail server {'up' if stage.mail.is_up else 'DOWN'}"


def _read(url: str | None) -> str | None:
    try:
        return None if url is None else read_database_url(url)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _why(error: SQLAlchemyError, options: Options) -> str:
    cause = getattr(error, "orig", None) or error
    if options.database_url is not None:
        return f"The database {why_unreachable(str(cause)).fact}. Look at --database-url."
    log = options.folder / "log" / "pg.log"
    return f"The database gave no answer ({type(cause).__name__}). Read {log}"


def _names() -> tuple[str, ...]:
    return tuple(spec.name for spec in HANDLERS if spec.function.__module__ == "shop.handlers")
