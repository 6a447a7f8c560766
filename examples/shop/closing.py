"""After the last task: the table, the checks, and what to do next."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
from rich.console import Console
from sqlalchemy import delete, func, select

from shop import figures
from shop.board import day_table
from shop.checks import run_checks
from shop.diary import Diary
from shop.evidence import Evidence
from shop.stage import Stage
from shop.tables import Points
from tasks_app.embedded.folder import DEFAULT_FOLDER


def judge(stage: Stage, diary: Diary, console: Console) -> bool:
    """Print table and checks; return whether all hold."""
    snapshot = stage.engine.execution_options(isolation_level="REPEATABLE READ")
    with snapshot.connect() as connection:
        lines, spans = figures.lines(connection, diary), figures.spans(connection, diary)
        ago = figures.first_done_s_ago(connection, diary)
        running = time.time() - psutil.Process().create_time()
        verdicts = run_checks(Evidence(connection, diary, dict(stage.mail.accepted)))
    console.print(day_table(lines, spans))
    console.print(f"\n  {figures.total(lines).done} tasks succeeded", end="")
    console.print("." if ago is None else f", the first one {running - ago:.1f} s after the start.")
    for verdict in verdicts:
        mark = "[green]✔[/]" if verdict.holds else "[red]✘[/]"
        console.print(f"  {mark} {verdict.claim}: [dim]{verdict.figure}[/]", soft_wrap=True)
    held = all(verdict.holds for verdict in verdicts)
    if not held:
        logs = stage.folder / "log"
        console.print(f"[red]Not every check holds.[/] Read {logs / 'worker.log'}, then beat.log.")
    return held


def spoil(stage: Stage) -> None:
    """Delete one grant of points, so that a check must fail."""
    with stage.engine.begin() as connection:
        first = select(func.min(Points.id)).scalar_subquery()
        connection.execute(delete(Points).where(Points.id == first))


def invite(stage: Stage, diary: Diary, console: Console) -> None:
    """Say what there is to see while everything runs."""
    poison = diary.poison[0] if diary.poison else "ID"
    urls = "tasks-app urls"
    if stage.folder != DEFAULT_FOLDER:
        urls += f" --folder {stage.folder}"
    enter = f'{_activation()}eval "$({urls})"'
    hello = _from_here(Path(__file__).parents[1] / "hello.py")
    console.print(
        f"""
[bold]Everything is still running.[/] In a second terminal:
  open {stage.dashboard.url:<33} the dashboard: every task, what failed and why, with buttons
  open {stage.flower.url:<33} workers and messages in Flower
  {enter}   then:
  tasks-app list --pool error           what failed, and why
  tasks-app doctor                      is everything fit to run
  tasks-app show {poison:<22} the poison task and how it ended, three times
  python {hello!s:<30} your first own task; this worker carries it out
Then read {hello.with_name("shop") / "handlers.py"} and edit {hello}. Ctrl-C stops everything.""",
        soft_wrap=True,
    )


def _activation() -> str:
    """Return what makes our commands known to a shell that has just begun."""
    script = Path(sys.prefix) / "bin" / "activate"
    return f". {_from_here(script)} && " if script.exists() else ""


def _from_here(path: Path) -> Path:
    """Return a path as people type it here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
