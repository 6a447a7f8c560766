"""The demo: servers up, a day of the shop, a table, the checks, servers down."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError

from shop import figures
from shop.closing import invite, judge, spoil
from shop.day import Day
from shop.diary import Diary
from shop.pace import ORDERS_TAKE_S
from shop.processes import Bell, DiedError, StoppedError
from shop.progress import make_view
from shop.stage import Stage
from tasks_app.embedded import DEFAULT_FOLDER, EmbeddedError
from tasks_app.runtime.registry import HANDLERS

TICK_S = 0.1
PATIENCE_S = ORDERS_TAKE_S + 40.0
"""How long we wait for the last task; then the checks say what is missing."""
STOPPED = 130


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said."""

    once: bool
    keep: bool
    no_ui: bool
    orders: int
    sabotage: bool
    folder: Path


@click.command()
@click.option("--once", is_flag=True, help="Stop everything after the checks, for CI.")
@click.option("--keep", is_flag=True, help="Leave PostgreSQL and Valkey running at the end.")
@click.option("--no-ui", is_flag=True, help="Plain lines instead of a table that refreshes.")
@click.option(
    "--orders", type=click.IntRange(10, 2000), default=100, show_default=True, help="How many."
)
@click.option("--sabotage", is_flag=True, help="Spoil one row, to see the checks fail.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="Where everything lives.",
)
def main(**options: Any) -> None:
    """Watch a shop's day on real PostgreSQL, Valkey, Celery and Flower, and check its result."""
    sys.exit(run(Options(**options)))


def run(options: Options) -> int:
    """Run the demo; return 0 if every check holds."""
    console, bell = Console(highlight=False), Bell()
    console.print(f"[bold]tasks-app demo[/]: everything lives in {options.folder}", soft_wrap=True)
    stage = Stage(options.folder, console, keep=options.keep)
    held = False
    try:
        stage.up(bell)
        diary = _live(stage, console, bell, options)
        if options.sabotage:
            spoil(stage)
        held = judge(stage, diary, console)
        if not options.once:
            invite(stage, console)
            _wait_for_the_bell(stage, bell)
    except StoppedError:
        console.print("\nStopping …")
        return 0 if held else STOPPED
    except (DiedError, EmbeddedError) as error:
        console.print(f"[red]✘[/] {error}", soft_wrap=True)
        return 1
    except SQLAlchemyError as error:
        kind = type(getattr(error, "orig", None) or error).__name__
        log = options.folder / "log" / "pg.log"
        console.print(f"[red]✘[/] The database gave no answer ({kind}). Read {log}", soft_wrap=True)
        return 1
    except OSError as error:
        console.print(f"[red]✘[/] {error}. Run the demo again.", soft_wrap=True)
        return 1
    finally:
        stage.down()
        console.print("All processes are stopped; the data stays.")
    return 0 if held else 1


def _live(stage: Stage, console: Console, bell: Bell, options: Options) -> Diary:
    """Live through the day, until the last task is over or our patience is."""
    diary = Diary(names=_names())
    day = Day(stage.engine, stage.mail, diary, options.orders)
    day.open()
    begin = time.monotonic()
    with make_view(console, live=not options.no_ui) as view:
        while (elapsed := time.monotonic() - begin) < PATIENCE_S:
            day.step(elapsed)
            stage.look()
            with stage.engine.connect() as connection:
                lines = figures.lines(connection, diary)
            view.show(elapsed, _news(stage, diary), lines)
            if figures.total(lines).done:
                stage.open_flower()
            if day.is_over and figures.total(lines).unfinished == 0:
                break
            bell.wait(TICK_S)
    console.print(f"  The day is over after {time.monotonic() - begin:.1f} s.\n")
    return diary


def _wait_for_the_bell(stage: Stage, bell: Bell) -> None:
    while True:
        stage.look()
        bell.wait(TICK_S)


def _news(stage: Stage, diary: Diary) -> str:
    orders = f"orders {len(diary.orders)}, rolled back {len(diary.rolled_back)}"
    return f"{orders}, mail server {'up' if stage.mail.is_up else 'DOWN'}"


def _names() -> tuple[str, ...]:
    return tuple(spec.name for spec in HANDLERS if spec.function.__module__ == "shop.handlers")
