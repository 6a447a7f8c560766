"""``doctor``, ``healthz``, ``config``: is all well, and what is set?"""

from __future__ import annotations

import os
import sys
import textwrap
from typing import Any

import click

from tasks_app.cli import output
from tasks_app.cli.database import settings
from tasks_app.domain.config.setting_sources import Effective, effective_settings, unknown_variables
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import AWAY, NO, ConfigurationError, TasksError
from tasks_app.domain.explain.facts import RunBy
from tasks_app.domain.finding import Finding, Level, fail, ok, warn
from tasks_app.runtime.handlers.registry import HANDLERS, load_handlers
from tasks_app.runtime.handlers.time_limits import check_hard_limit
from tasks_app.runtime.health_files import ROLES, RUN_DIR_VARIABLE, judge, probe, project_folder

_INDENT = " " * 6
_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@click.command()
@output.as_json
def doctor(*, json_: bool) -> None:
    """Check settings, database, broker, workers; say what to do.

    Exit 0: nothing fails, warnings or not. 1: a check fails. 3: database or broker is away.
    """
    findings = _examine()
    if json_:
        output.print_json(findings)
    else:
        for finding in findings:
            click.echo(_line(finding))
    if any(finding.away for finding in findings):
        sys.exit(AWAY)
    sys.exit(NO if any(finding.level is Level.FAIL for finding in findings) else 0)


@click.command()
@click.option("--role", type=click.Choice(ROLES), required=True, help="Whose health.")
@click.option("--node", help="Only this node: celery@host. Default: all on this machine.")
@output.as_json
def healthz(role: str, node: str | None, *, json_: bool) -> None:
    """Tell whether worker, beat or database is alive: exit 0 or 1.

    For worker and beat it reads the files of the database and schema that TASKS_APP_DATABASE_URL
    and TASKS_APP_SCHEMA name; the database itself is asked. It may run every few seconds.
    """
    if not json_:
        sys.exit(probe(role, node))
    good, why = judge(role, node)
    output.print_json({"role": role, "node": node, "healthy": good, "why": why})
    sys.exit(0 if good else NO)


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
    return [output.found_here(finding) for finding in (*found, *_celery(given))]


def _settings(given: Settings) -> list[Finding]:
    findings = unknown_variables() or [ok("settings", "all valid")]
    try:
        load_handlers(given.modules)
        check_hard_limit(HANDLERS, given.timeout, given.hard_timeout)  # workers refuse it, too
    except TasksError as error:
        fact, _, advice = str(error).partition(". ")
        findings.append(fail("handlers", fact, advice))
    except Exception as error:
        fact = f"a module of TASKS_APP_IMPORTS breaks ({type(error).__name__}: {error})"
        findings.append(fail("handlers", fact, "Mend it: no worker of these settings starts."))
    else:
        findings.append(ok("handlers", f"{len(HANDLERS.names)} known here"))
    return findings


def _celery(given: Settings) -> list[Finding]:
    """Check Celery, imported here only; the broker may stand in celeryconfig.py alone."""
    try:
        from tasks_app.broker import checks as checkup  # noqa: PLC0415
        from tasks_app.broker import internals  # noqa: PLC0415
        from tasks_app.broker.config import celery_configuration  # noqa: PLC0415

        _ = celery_configuration(given)  # says what is wrong, where the app would end the process
        from tasks_app.celery import app  # noqa: PLC0415
    except ConfigurationError as error:
        return [fail("celery", str(error).rstrip("."), "Neither worker nor beat starts.")]
    except Exception as error:
        fact = f"celeryconfig breaks ({type(error).__name__}: {error})"
        return [fail("celery", fact, "Mend it: neither worker nor beat starts.")]
    if not (app.conf.broker_url or app.conf.broker_read_url):
        broker = [_no_broker(given)]
    else:
        broker = [*checkup.examine_broker(app), *checkup.examine_access(app)]
    return [*broker, *checkup.examine_celery(app), *internals.examine()]


def _no_broker(given: Settings) -> Finding:
    from tasks_app.monitor.checks.checkup import what_runs_here  # noqa: PLC0415  as above

    if what_runs_here(given) is RunBy.WORK:
        return ok("broker", "none is configured, and tasks-app work needs none")
    advice = "Set TASKS_APP_BROKER_URL, unless you run tasks-app work only."
    return warn("broker", "none is configured", advice)


def _line(finding: Finding) -> str:
    level = click.style(f"{finding.level:<5}", fg=_COLOURS[finding.level], bold=True)
    fact = f"{finding.fact.rstrip('.')}." if finding.advice else finding.fact
    said = f"{finding.subject:<13} {fact} {finding.advice}".rstrip()
    most = output.width()
    return f"{level} {said}" if most is None else f"{level} {_wrapped(said, most - len(_INDENT))}"


def _wrapped(said: str, most: int) -> str:
    """Break it at words only: what to run is to be copied."""
    lines = textwrap.wrap(
        said, max(most, output.NARROWEST), break_long_words=False, break_on_hyphens=False
    )
    return f"\n{_INDENT}".join(lines)


LONG = 20
"""A longer value stands behind its source, or below it."""


@click.command()
@output.as_wide
@output.as_json
def config(*, wide: bool, json_: bool) -> None:
    """Show the settings in force here, without secrets."""
    before = dict(os.environ)
    ours = effective_settings(settings())
    ours = [_in_use(each) if each.name == RUN_DIR_VARIABLE else each for each in ours]
    found = [
        Effective(each.name, each.value, "./.tasks_app")
        if each.source == "environment" and each.name not in before
        else each
        for each in ours
    ]
    from tasks_app.broker.config import effective_celery_settings  # noqa: PLC0415  Celery
    from tasks_app.celery import app  # noqa: PLC0415

    theirs = effective_celery_settings(app)
    if json_:
        output.print_json({"tasks_app": _table(found), "celery": _table(theirs)})
        return
    every = [*found, *theirs]
    values = [output.cell(each.value) for each in every]
    longs = [not wide and len(value) > LONG for value in values]
    output.echo(
        ("setting", "value", "source"),
        [
            [each.name, "" if long else value, each.source]
            for each, value, long in zip(every, values, longs, strict=True)
        ],
        [value if long else "" for value, long in zip(values, longs, strict=True)],
        remark="value",
        cut=("setting",),
        wide=wide,
    )


def _in_use(run_dir: Effective) -> Effective:
    """Show the folder itself, to tell the folders of several projects apart."""
    return Effective(run_dir.name, project_folder(), run_dir.source)


def _table(of: list[Effective]) -> dict[str, Any]:
    return {each.name: {"value": each.value, "source": each.source} for each in of}
