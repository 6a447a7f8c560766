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

from tasks_app.runtime.gc_pause import uncollected

COMMANDS = {
    "demo": "tasks_app.cli.servers:demo",
    "up": "tasks_app.cli.servers:up",
    "down": "tasks_app.cli.servers:down",
    "urls": "tasks_app.cli.servers:urls",
    "migrate": "tasks_app.cli.installs:migrate",
    "grants": "tasks_app.cli.installs:grants",
    "notify": "tasks_app.cli.installs:notify",
    "list": "tasks_app.cli.task_views:list_",
    "show": "tasks_app.cli.task_views:show",
    "explain": "tasks_app.cli.task_views:explain",
    "stats": "tasks_app.cli.task_views:stats",
    "create": "tasks_app.cli.task_moves:create",
    "cancel": "tasks_app.cli.task_actions:of_tasks",
    "requeue": "tasks_app.cli.task_actions:of_tasks",
    "edit": "tasks_app.cli.task_actions:edit",
    "run-now": "tasks_app.cli.task_actions:of_tasks",
    "reschedule": "tasks_app.cli.task_actions:of_tasks",
    "reprioritise": "tasks_app.cli.task_actions:of_tasks",
    "move": "tasks_app.cli.task_actions:of_tasks",
    "hold": "tasks_app.cli.task_actions:of_tasks",
    "release": "tasks_app.cli.task_actions:of_tasks",
    "enable": "tasks_app.cli.task_actions:of_tasks",
    "disable": "tasks_app.cli.task_actions:of_tasks",
    "export": "tasks_app.cli.task_moves:export",
    "import": "tasks_app.cli.task_moves:import_",
    "cancel-moved": "tasks_app.cli.task_moves:cancel_moved_",
    "rest": "tasks_app.cli.task_actions:rest",
    "errors": "tasks_app.cli.errors:errors",
    "alerts": "tasks_app.cli.serving:alerts",
    "audit": "tasks_app.cli.reports:audit",
    "pause": "tasks_app.cli.queues:pause",
    "resume": "tasks_app.cli.queues:resume",
    "limits": "tasks_app.cli.flow_control:limits",
    "unblock": "tasks_app.cli.flow_control:unblock",
    "queues": "tasks_app.cli.queues:queues",
    "breakers": "tasks_app.cli.flow_control:breakers",
    "fair": "tasks_app.cli.flow_control:fair",
    "encryption": "tasks_app.cli.upkeep:encryption",
    "erase": "tasks_app.cli.upkeep:erase",
    "prune": "tasks_app.cli.upkeep:prune",
    "maintain": "tasks_app.cli.upkeep:maintain",
    "schedules": "tasks_app.cli.schedules:schedules",
    "db-scheduler": "tasks_app.cli.db_scheduler:db_scheduler",
    "batch": "tasks_app.cli.batch:batch",
    "locks": "tasks_app.cli.coordination:locks",
    "groups": "tasks_app.cli.coordination:groups",
    "report": "tasks_app.cli.reports:report",
    "doctor": "tasks_app.cli.doctor:doctor",
    "config": "tasks_app.cli.doctor:config",
    "healthz": "tasks_app.cli.doctor:healthz",
    "metrics": "tasks_app.cli.serving:metrics",
    "scan": "tasks_app.cli.work:scan",
    "work": "tasks_app.cli.work:work",
    "dashboard": "tasks_app.cli.serving:dashboard",
}
"""In the order in which people meet them; each is imported when it is called."""
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
"""What other systems call some of them."""
_CELERYS = {"beat": "celery -A tasks_app beat", "flower": "celery -A tasks_app flower"}
_OPTIONS = {"--reason": "--why", "--countdown": "--delay", "--eta": "--run-at"}
_NO_EXTRA = ("healthz", "metrics", "work", "dashboard")
_EXTRAS = {"up": "embedded", "down": "embedded", "urls": "embedded", "demo": "demo"}
"""Which extra of the package a command needs; the others need ``cli``."""
_MODULES = {
    "cli": ("alembic", "rich"),
    "embedded": ("alembic", "rich", "psutil"),
    "demo": ("alembic", "rich", "psutil", "flower", "aiosmtpd"),
}
"""By extra. The wheels of the servers are not listed: ``embedded`` looks for them itself."""


class Commands(click.Group):
    """The commands above, and how one of them ends when it fails."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        module, _, name = COMMANDS.get(cmd_name, "").partition(":")
        if not module:
            return None
        with uncollected():  # little of what imports make is garbage
            found: Any = getattr(import_module(module), name)
            command: click.Command = found if isinstance(found, click.Command) else found(cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuse a command whose extra is not installed; ``--help`` lists it all the same."""
        _check_extra(args[0])
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse empty arguments of every command, and make sure that it can print.

        Raises:
            click.UsageError: an argument or the value of an option is empty.
        """
        _open_streams()
        _refuse_empty(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error is one sentence and the next step, never a traceback.

        Handlers are looked for in the current folder, too.
        """
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            raise
        except click.UsageError as error:
            _suggest(error)
            raise
        except (Exception, KeyboardInterrupt) as error:
            from tasks_app.cli.database import ending  # noqa: PLC0415  SQLAlchemy costs 200 ms

            status = ending(error)
            if status is None:
                raise
            sys.exit(status)


def _suggest(error: click.UsageError) -> None:
    """Refuse an unknown command or option with what it is perhaps called."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        ours = _OPTIONS.get(error.option_name)
        if ours and any(ours in each.opts for each in error.ctx.command.params):
            hint = f"No such option {error.option_name}. Did you mean {ours}?"
            raise click.UsageError(hint, error.ctx) from None
        return
    from tasks_app.domain.errors import nearest  # noqa: PLC0415  it is rare

    said, ctx = re.match("No such command '(.*?)'", error.message), error.ctx
    if said is None or ctx is None or not isinstance(ctx.command, click.Group):
        return
    names = ctx.command.list_commands(ctx)
    if not isinstance(ctx.command, Commands):  # the commands above are not to be imported for this
        names = [name for name in names if not ctx.command.commands[name].hidden]
    same = [name for name in _ELSEWHERE.get(said[1], ()) if name in names]
    near = same[0] if same else nearest(said[1], names)
    path = ctx.command_path
    if isinstance(ctx.command, Commands) and said[1] in _CELERYS:
        raise click.UsageError(f"{path} has no {said[1]}. Run: {_CELERYS[said[1]]}", ctx) from None
    hint = f"Did you mean: {path} {near}?" if near else f"It has: {', '.join(names)}."
    raise click.UsageError(f"{path} has no command {said[1]!r}. {hint}", ctx) from None


def _check_extra(command: str) -> None:
    extra = "" if command in _NO_EXTRA else _EXTRAS.get(command, "cli")
    if any(find_spec(module) is None for module in _MODULES.get(extra, ())):
        from tasks_app.domain.errors import ConfigurationError  # noqa: PLC0415  click alone so far

        raise ConfigurationError(
            f"tasks-app {command} needs an extra. Run: pip install 'tasks_app[{extra}]'"
        )


def _open_streams() -> None:
    """Let no character end a command: what an encoding lacks is shown as an escape.

    ASCII means that nobody chose an encoding; click and Python take it so, too.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            ascii_ = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding="utf-8" if ascii_ else None, errors="backslashreplace")


def _refuse_empty(args: list[str]) -> None:
    """Refuse them: an empty shell variable would drop a filter, and the command meet more tasks."""
    for before, given in pairwise(["", *args]):
        if not given.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in given):
            raise click.UsageError("An argument is not UTF-8. Type it on a terminal that is.")
        option, _, value = given.partition("=")
        if not given.strip() or (option.startswith("--") and option != given and not value.strip()):
            where = before if before.startswith("-") and not given.strip() else option
            what = f"The value of {where}" if where.strip() else "An argument"
            raise click.UsageError(f"{what} is empty. Leave it out, or say what is meant.")


def _group(name: str) -> click.Group:
    made = Commands(
        name,
        help="""Durable jobs on PostgreSQL and Celery.

        The database is TASKS_APP_DATABASE_URL; without it, the embedded one of ./.tasks_app.
        """,
        epilog="Exit codes: 0 done; 1 the answer is no; 2 wrong usage or configuration; "
        "3 the database or the broker does not answer.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    return click.version_option(package_name="tasks_app", prog_name="tasks-app")(made)


group, pool = _group("tasks-app"), _group("pool")
"""One group under two names: Celery goes by the name that the command itself has."""
