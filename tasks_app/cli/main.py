"""``tasks-app``: the group, and what all its commands share.

Exit codes: 0 done; 1 the answer is no (not found, schema behind, a check failed); 2 wrong usage or
configuration; 3 the database or the broker does not answer.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import click
from sqlalchemy.exc import OperationalError, ProgrammingError

from tasks_app.domain.errors import PublishError, TasksError
from tasks_app.embedded.errors import EmbeddedError

NO, USAGE, AWAY = 1, 2, 3
_REFUSALS = {
    "42P01": ("The schema is missing. Run: tasks-app migrate", NO),
    "42501": ("This database role may not do that. See the privileges in docs/operations.md.", NO),
}
"""By SQLSTATE: undefined table, insufficient privilege."""


COMMANDS = {
    "demo": "tasks_app.cli.demo:demo",
    "up": "tasks_app.cli.stack:up",
    "down": "tasks_app.cli.stack:down",
    "urls": "tasks_app.cli.stack:urls",
    "migrate": "tasks_app.cli.schema:migrate",
    "list": "tasks_app.cli.views:list_",
    "show": "tasks_app.cli.views:show",
    "stats": "tasks_app.cli.views:stats",
    "create": "tasks_app.cli.tasks:create",
    "cancel": "tasks_app.cli.tasks:cancel",
    "requeue": "tasks_app.cli.tasks:requeue",
    "scan": "tasks_app.cli.workers:scan",
    "work": "tasks_app.cli.workers:work",
}
"""In the order in which people meet them; each is imported when it is called."""


class Commands(click.Group):
    """The commands above."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """Return the names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one command; None: there is no such command."""
        module, _, name = COMMANDS.get(cmd_name, "").partition(":")
        command: click.Command | None = getattr(import_module(module), name) if module else None
        return command


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done; 1 the answer is no; 2 wrong usage or configuration; "
    "3 the database or the broker does not answer.",
)
@click.version_option(package_name="tasks_app", prog_name="tasks-app")
def group() -> None:
    """Durable jobs on PostgreSQL and Celery.

    The database is TASKS_APP_DATABASE_URL; without it, the embedded one of ./.tasks_app.
    """


def main() -> None:
    """Run a command; errors are one sentence and the next step, never a traceback.

    Handlers are looked for in the current folder, too, as Celery does.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        sys.exit(group.main(standalone_mode=False) or 0)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(USAGE)
    except click.Abort:
        _end("Stopped.", NO)
    except (OperationalError, PublishError) as error:
        _end(_away(error), AWAY)
    except ProgrammingError as error:
        state = getattr(error.orig, "sqlstate", None)
        if state not in _REFUSALS:
            raise
        _end(*_REFUSALS[state])
    except (TasksError, EmbeddedError) as error:
        _end(str(error), USAGE)


def _away(error: Exception) -> str:
    if isinstance(error, PublishError):
        return str(error)
    return (
        "The database does not answer. Check TASKS_APP_DATABASE_URL, "
        "or start an embedded one with: tasks-app up -d"
    )


def _end(message: str, status: int) -> None:
    click.echo(message, err=True)
    sys.exit(status)
