"""``doctor``, ``healthz``, ``stacks``, ``config``: problems, health and settings."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from typing import Any

import click

from tasks_app.actions.queues import Asked, ask_stacks
from tasks_app.cli import output
from tasks_app.cli.database import broken_module, caller, settings, transaction, why_option
from tasks_app.domain.config.setting_sources import Effective, effective_settings, unknown_variables
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import EXIT_NO, EXIT_UNREACHABLE, ConfigurationError, TasksError
from tasks_app.domain.explain.facts import RunBy
from tasks_app.domain.finding import Finding, Level, fail, ok, warn
from tasks_app.domain.tasks.error_text import printable
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.handlers.registry import HANDLERS, load_handlers
from tasks_app.runtime.handlers.time_limits import check_hard_limit
from tasks_app.runtime.health_files import ROLES, RUN_DIR_VARIABLE, judge, probe, project_folder

_INDENT = " " * 6
ANSWER_PATIENCE_S = 10.0
_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@click.command()
@output.json_option
def doctor(*, json_: bool) -> None:
    """Check settings, database, broker, workers; print what to do.

    Exit 0: no check fails, warnings or not. 1: a check fails. 3: database or broker is away.
    """
    findings = _examine()
    if json_:
        output.print_json(findings)
    else:
        for finding in findings:
            click.echo(_line(finding))
    if any(finding.away for finding in findings):
        sys.exit(EXIT_UNREACHABLE)
    sys.exit(EXIT_NO if any(finding.level is Level.FAIL for finding in findings) else 0)


@click.command()
@click.option("--role", type=click.Choice(ROLES), required=True, help="Whose health.")
@click.option("--node", help="Only this node: celery@host. Default: all on this machine.")
@output.json_option
def healthz(role: str, node: str | None, *, json_: bool) -> None:
    """Check that worker, beat or database is alive: exit 0 or 1.

    For worker and beat it reads the files of the database and schema that TASKS_APP_DATABASE_URL
    and TASKS_APP_SCHEMA name; for the database it connects. You may run it every few seconds.
    """
    if not json_:
        sys.exit(probe(role, node))
    good, why = judge(role, node)
    output.print_json({"role": role, "node": node, "healthy": good, "why": why})
    sys.exit(0 if good else EXIT_NO)


@click.command()
@click.option("--worker", default="", metavar="NAME", help="Only of this worker, or of this child.")
@why_option
@output.json_option
def stacks(worker: str, *, json_: bool) -> None:
    """Print what each thread and coroutine of workers does now.

    Files, lines and functions, with the task that each runs; never values. It asks through the
    database, so that it works from anywhere; they log it, too. Exit 1: none is there, or one
    did not answer.
    """
    with transaction() as connection:
        asked = ask_stacks.run(connection, None, Asked(worker), caller())
    if not asked.changed and not json_:
        output.refuse(asked.text)
    ends = time.monotonic() + ANSWER_PATIENCE_S
    while True:
        with transaction() as connection:
            found = heartbeats.read_stacks(connection, worker)
        found = [each for each in found if each.owner in (asked.fields or ())]
        silent = [each.owner for each in found if each.stacks is None]
        if not silent or time.monotonic() > ends:
            break
        time.sleep(0.25)
    if json_:
        output.print_json(found)
    else:
        for each in found:
            click.echo(f"{each.owner}\n{printable(each.stacks or 'It has not answered.')}\n")
    sys.exit(EXIT_NO if silent or not found else 0)


def _examine() -> list[Finding]:
    try:
        given = settings()
        _ = given.database
    except ConfigurationError as error:
        fact, _, advice = str(error).partition(". ")
        return [fail("settings", fact.rstrip("."), advice or "See docs/reference/settings.md.")]
    from tasks_app.monitor.checks.checkup import examine  # noqa: PLC0415  not for a wrong setting
    from tasks_app.runtime.handler_db.driver_internals import examine as examine_drivers  # noqa: PLC0415

    found = [*_settings(given), *examine_drivers(), *examine(given)]
    return [output.finding_with_program_name(finding) for finding in (*found, *_celery(given))]


def _settings(given: Settings) -> list[Finding]:
    findings = unknown_variables() or [ok("settings", "all valid")]
    try:
        load_handlers(given.modules)
        check_hard_limit(HANDLERS, given.timeout, given.hard_timeout)  # workers refuse it, too
    except TasksError as error:
        fact, _, advice = str(error).partition(". ")
        findings.append(fail("handlers", fact, advice))
    except Exception as error:
        findings.append(fail("handlers", *broken_module(error)))
    else:
        findings.append(ok("handlers", f"{len(HANDLERS.names)} known here"))
    return findings


def _celery(given: Settings) -> list[Finding]:
    """Check Celery, which only this imports; celeryconfig.py alone may name the broker."""
    try:
        from tasks_app.broker import checks, internals  # noqa: PLC0415
        from tasks_app.broker.config import celery_configuration  # noqa: PLC0415

        _ = celery_configuration(given)  # raises, where the app would end the process
        from tasks_app.celery import app  # noqa: PLC0415
    except ConfigurationError as error:
        return [fail("celery", str(error).rstrip("."), "Neither worker nor beat starts.")]
    except Exception as error:
        fact = f"celeryconfig breaks ({type(error).__name__}: {error})"
        return [fail("celery", fact, "Fix it: neither worker nor beat starts.")]
    if not (app.conf.broker_url or app.conf.broker_read_url):
        broker = [_no_broker(given)]
    else:
        broker = [*checks.examine_broker(app), *checks.examine_access(app)]
    return [*broker, *checks.examine_celery(app), *internals.examine()]


def _no_broker(given: Settings) -> Finding:
    from tasks_app.monitor.checks.checkup import what_runs_here  # noqa: PLC0415  as above

    if what_runs_here(given) is RunBy.WORK:
        return ok("broker", "none is configured, and tasks-app work needs none")
    advice = "Set TASKS_APP_BROKER_URL, unless you run tasks-app work only."
    return warn("broker", "none is configured", advice)


def _line(finding: Finding) -> str:
    level = click.style(f"{finding.level:<5}", fg=_COLOURS[finding.level], bold=True)
    fact = f"{finding.fact.rstrip('.')}." if finding.advice else finding.fact
    text = f"{finding.subject:<13} {fact} {finding.advice}".rstrip()
    most = output.width()
    if most is not None:  # broken at words only, so that commands can be copied
        size = max(most - len(_INDENT), output.NARROWEST)
        lines = textwrap.wrap(text, size, break_long_words=False, break_on_hyphens=False)
        text = f"\n{_INDENT}".join(lines)
    return f"{level} {text}"


@click.command()
@output.wide_option
@output.json_option
def config(*, wide: bool, json_: bool) -> None:
    """Show the settings in force here, without secrets."""
    before = dict(os.environ)
    found = []
    for each in effective_settings(settings()):
        value, source = each.value, each.source
        if each.name == RUN_DIR_VARIABLE:
            value = project_folder()  # itself, to tell the folders of several projects apart
        if source == "environment" and each.name not in before:
            source = "./.tasks_app"
        found.append(Effective(each.name, value, source))
    from tasks_app.broker.config import effective_celery_settings  # noqa: PLC0415  Celery
    from tasks_app.celery import app  # noqa: PLC0415

    theirs = effective_celery_settings(app)
    if json_:
        output.print_json({"tasks_app": _table(found), "celery": _table(theirs)})
        return
    every = [*found, *theirs]
    rows, remarks = [], []
    for each in every:
        value = output.cell(each.value)
        is_long = not wide and len(value) > 20  # noqa: PLR2004  columns
        rows.append([each.name, "" if is_long else value, each.source])
        remarks.append(value if is_long else "")
    output.print_rows(
        ("setting", "value", "source"), rows, remarks, remark="value", cut=("setting",), wide=wide
    )


def _table(of: list[Effective]) -> dict[str, Any]:
    return {each.name: {"value": each.value, "source": each.source} for each in of}
