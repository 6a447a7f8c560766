"""The group of all commands: ``tasks-app …`` and, inside Celery, ``celery -A tasks_app pool …``.

Every start of ``celery`` imports this module, so it imports click and nothing else that costs.
"""

from __future__ import annotations

import codecs
import io
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from tasks_app.runtime.startup import uncollected

SECTIONS = {
    "Run": {
        "demo": "servers:demo",
        "up": "servers:up",
        "down": "servers:down",
        "urls": "servers:urls",
        "work": "work:work",
        "scan": "work:scan",
        "dashboard": "serving:dashboard",
        "metrics": "serving:metrics",
        "healthz": "doctor:healthz",
    },
    "Tasks": {
        "list": "task_views:list_",
        "show": "task_views:show",
        "explain": "task_views:explain",
        "stats": "task_views:stats",
        "create": "task_moves:create",
        "cancel": "task_actions:task_command",
        "requeue": "task_actions:task_command",
        "edit": "task_actions:edit",
        "run-now": "task_actions:task_command",
        "reschedule": "task_actions:task_command",
        "reprioritise": "task_actions:task_command",
        "move": "task_actions:task_command",
        "hold": "task_actions:task_command",
        "release": "task_actions:task_command",
        "enable": "task_actions:task_command",
        "disable": "task_actions:task_command",
        "rest": "task_actions:rest",
        "groups": "coordination:groups",
        "flows": "coordination:flows",
        "events": "coordination:events",
        "export": "task_moves:export",
        "import": "task_moves:import_",
        "cancel-moved": "task_moves:cancel_moved_",
    },
    "Errors": {"errors": "errors:errors"},
    "Queues and limits": {
        "pause": "queues:pause",
        "resume": "queues:resume",
        "queues": "queues:queues",
        "limits": "flow_control:limits",
        "unblock": "flow_control:unblock",
        "breakers": "flow_control:breakers",
        "fair": "flow_control:fair",
        "locks": "coordination:locks",
    },
    "Schedules": {
        "schedules": "schedules:schedules",
        "db-scheduler": "schedules:db_scheduler",
    },
    "Batch jobs": {"batch": "batch:batch"},
    "Operate": {
        "migrate": "installs:migrate",
        "grants": "installs:grants",
        "notify": "installs:notify",
        "doctor": "doctor:doctor",
        "config": "doctor:config",
        "stacks": "doctor:stacks",
        "report": "reports:report",
        "audit": "reports:audit",
        "alerts": "serving:alerts",
        "maintain": "upkeep:maintain",
        "prune": "upkeep:prune",
        "erase": "upkeep:erase",
        "encryption": "upkeep:encryption",
    },
}
COMMANDS = {name: path for section in SECTIONS.values() for name, path in section.items()}
"""By name: a file of this folder, and the command in it; it is imported when it is called."""
_ELSEWHERE = {
    "retry": ("requeue",),
    **dict.fromkeys(("remove", "delete", "rm", "revoke", "drop"), ("remove", "cancel")),
    "ls": ("list",),
    "status": ("stats",),
    **dict.fromkeys(("info", "inspect", "get"), ("show",)),
    **dict.fromkeys(("worker", "run"), ("work",)),
    "check": ("doctor",),
    "upgrade": ("migrate",),
    "purge": ("prune",),
    **dict.fromkeys(("new", "create", "add"), ("add", "create", "set")),
}
"""Other systems' names for our commands."""
_OPTIONS = {"--reason": "--why", "--countdown": "--delay", "--eta": "--run-at"}
_NO_EXTRA = ("healthz", "metrics", "work", "dashboard")
_EXTRAS = {"up": "embedded", "down": "embedded", "urls": "embedded", "demo": "demo"}
"""The extra of the package that a command needs; the others need ``cli``."""
_MODULES = {
    "cli": ("alembic", "rich"),
    "embedded": ("alembic", "rich", "psutil"),
    "demo": ("alembic", "rich", "psutil", "flower", "aiosmtpd"),
}
"""By extra. The wheels of the servers are not listed: ``embedded`` checks them itself."""


class Commands(click.Group):
    """The commands above, and how one of them ends when it fails."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        module, _, name = COMMANDS.get(cmd_name, "").partition(":")
        if not module:
            return None
        with uncollected():  # little of what imports make is garbage
            found: Any = getattr(import_module(f"tasks_app.cli.{module}"), name)
            command: click.Command = found if isinstance(found, click.Command) else found(cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, COMMANDS))
        for heading, names in SECTIONS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (name.ljust(widest), each.get_short_help_str(formatter.width - widest - 6))
                        for name, each in commands
                        if each is not None
                    ]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuse a command whose extra is not installed; ``--help`` lists it anyway."""
        _check_extra(args[0])
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _open_streams()
        _refuse_empty(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error is one sentence and the next step, never a traceback."""
        if str(Path.cwd()) not in sys.path:  # handlers may be in the current folder
            sys.path.insert(0, str(Path.cwd()))
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            raise
        except click.UsageError as error:
            _suggest(error)
            raise
        except (Exception, KeyboardInterrupt) as error:
            from tasks_app.cli.endings import print_error  # noqa: PLC0415  SQLAlchemy costs 200 ms

            status = print_error(error)
            if status is None:
                raise
            sys.exit(status)


def _suggest(error: click.UsageError) -> None:
    """Refuse an unknown command or option with the name that was perhaps meant."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        ours = _OPTIONS.get(error.option_name)
        if ours and any(ours in each.opts for each in error.ctx.command.params):
            hint = f"No such option {error.option_name}. Did you mean {ours}?"
            raise click.UsageError(hint, error.ctx) from None
        return
    from tasks_app.domain.errors import nearest  # noqa: PLC0415  it is rare

    match, ctx = re.match("No such command '(.*?)'", error.message), error.ctx
    if match is None or ctx is None or not isinstance(ctx.command, click.Group):
        return
    given, path, names = match[1], ctx.command_path, ctx.command.list_commands(ctx)
    if not isinstance(ctx.command, Commands):  # this must not import the commands above
        names = [name for name in names if not ctx.command.commands[name].hidden]
    elif given in ("beat", "flower"):
        hint = f"{path} has no {given}. Run: celery -A tasks_app {given}"
        raise click.UsageError(hint, ctx) from None
    same = [name for name in _ELSEWHERE.get(given, ()) if name in names]
    near = same[0] if same else nearest(given, names)
    hint = f"Did you mean: {path} {near}?" if near else f"It has: {', '.join(names)}."
    raise click.UsageError(f"{path} has no command {given!r}. {hint}", ctx) from None


def _check_extra(command: str) -> None:
    extra = "" if command in _NO_EXTRA else _EXTRAS.get(command, "cli")
    if any(find_spec(module) is None for module in _MODULES.get(extra, ())):
        from tasks_app.domain.errors import ConfigurationError  # noqa: PLC0415  click alone so far

        raise ConfigurationError(
            f"tasks-app {command} needs an extra. Run: pip install 'tasks_app[{extra}]'"
        )


def _open_streams() -> None:
    """Print a character that the encoding lacks as an escape, instead of failing.

    ASCII means that the user chose no encoding; click and Python assume this, too.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            ascii_ = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding="utf-8" if ascii_ else None, errors="backslashreplace")


def _refuse_empty(args: list[str]) -> None:
    """Raise UsageError: an empty shell variable would drop a filter, and select more tasks."""
    for before, given in pairwise(["", *args]):
        if not given.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in given):
            raise click.UsageError("An argument is not UTF-8. Type it on a terminal that is.")
        option, _, value = given.partition("=")
        if not given.strip() or (option.startswith("--") and option != given and not value.strip()):
            where = before if before.startswith("-") and not given.strip() else option
            what = f"The value of {where}" if where.strip() else "An argument"
            raise click.UsageError(f"{what} is empty. Leave it out, or give a value.")


def _group(name: str) -> click.Group:
    made = Commands(
        name,
        help="""Durable jobs on PostgreSQL, with Celery or without.

        The database is TASKS_APP_DATABASE_URL; without it, the embedded one of ./.tasks_app.
        """,
        epilog="Exit codes: 0 done; 1 the answer is no; 2 wrong usage or configuration; "
        "3 the database or the broker does not answer.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    return click.version_option(package_name="tasks_app", prog_name="tasks-app")(made)


group, pool = _group("tasks-app"), _group("pool")
"""One group under two names: Celery uses the name of the command itself."""
