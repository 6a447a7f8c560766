"""The group of all commands: ``tasks-app …`` and, inside Celery, ``celery -A tasks_app pool …``.

Every start of ``celery`` imports this module, so it imports click and nothing else.
"""

from __future__ import annotations

import codecs
import io
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

COMMANDS = {
    "demo": "tasks_app.cli.demo:demo",
    "up": "tasks_app.cli.stack:up",
    "down": "tasks_app.cli.stack:down",
    "urls": "tasks_app.cli.stack:urls",
    "migrate": "tasks_app.cli.schema:migrate",
    "grants": "tasks_app.cli.grants:grants",
    "list": "tasks_app.cli.views:list_",
    "show": "tasks_app.cli.views:show",
    "explain": "tasks_app.cli.explain:explain",
    "stats": "tasks_app.cli.views:stats",
    "create": "tasks_app.cli.tasks:create",
    "cancel": "tasks_app.cli.bulk:cancel",
    "requeue": "tasks_app.cli.bulk:requeue",
    "edit": "tasks_app.cli.bulk:edit",
    "rest": "tasks_app.cli.bulk:rest",
    "audit": "tasks_app.cli.audit:audit",
    "pause": "tasks_app.cli.pauses:pause",
    "resume": "tasks_app.cli.pauses:resume",
    "limits": "tasks_app.cli.limits:limits",
    "unblock": "tasks_app.cli.limits:unblock",
    "queues": "tasks_app.cli.queues:queues",
    "breakers": "tasks_app.cli.breakers:breakers",
    "fair": "tasks_app.cli.fair:fair",
    "prune": "tasks_app.cli.prune:prune",
    "schedules": "tasks_app.cli.schedules:schedules",
    "batch": "tasks_app.cli.batch:batch",
    "locks": "tasks_app.cli.locks:locks",
    "groups": "tasks_app.cli.groups:groups",
    "doctor": "tasks_app.cli.doctor:doctor",
    "config": "tasks_app.cli.config:config",
    "healthz": "tasks_app.cli.healthz:healthz",
    "scan": "tasks_app.cli.workers:scan",
    "work": "tasks_app.cli.workers:work",
}
"""In the order in which people meet them; each is imported when it is called."""


class Commands(click.Group):
    """The commands above, and what happens when one of them fails."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """Return the names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one command; None: there is no such command."""
        module, _, name = COMMANDS.get(cmd_name, "").partition(":")
        command: click.Command | None = getattr(import_module(module), name) if module else None
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuse a command whose extra is not installed; their list can be shown all the same."""
        from tasks_app.cli.extras import check_extra  # noqa: PLC0415  as above

        check_extra(args[0])
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse what is empty, whatever the command is, and see to it that it can print.

        Raises:
            click.UsageError: an argument or the value of an option is empty.
        """
        _open_streams()
        _refuse_empty(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; errors are one sentence and the next step, never a traceback.

        Handlers are looked for in the current folder, too, as Celery does.
        """
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            raise
        except (Exception, KeyboardInterrupt) as error:
            from tasks_app.cli.endings import ending  # noqa: PLC0415  SQLAlchemy costs 200 ms

            status = ending(error)
            if status is None:
                raise
            sys.exit(status)


def _open_streams() -> None:
    """Let no character end a command: what an encoding lacks is shown as an escape.

    ASCII is taken for a surrounding that was not set up, as by click, and by Python where it can.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            ascii_ = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding="utf-8" if ascii_ else None, errors="backslashreplace")


def _refuse_empty(args: list[str]) -> None:
    """An empty variable of the shell would take a filter away, and mean more tasks than it says."""
    for before, given in pairwise(["", *args]):
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
