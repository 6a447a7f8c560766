"""``tasks-app``: the group, and what all its commands share.

Exit codes: 0 done; 1 the answer is no (not found, schema behind, a check failed); 2 wrong usage or
configuration; 3 the database or the broker does not answer.
"""

from __future__ import annotations

import sys

import click
from sqlalchemy.exc import OperationalError, ProgrammingError

from tasks_app.cli.demo import demo
from tasks_app.cli.schema import migrate
from tasks_app.cli.stack import down, up, urls
from tasks_app.cli.tasks import cancel, create, requeue
from tasks_app.cli.views import list_, show, stats
from tasks_app.cli.workers import scan, work
from tasks_app.domain.errors import PublishError, TasksError
from tasks_app.embedded import EmbeddedError

NO, USAGE, AWAY = 1, 2, 3
_UNDEFINED_TABLE = "42P01"


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done; 1 the answer is no; 2 wrong usage or configuration; "
    "3 the database or the broker does not answer.",
)
@click.version_option(package_name="tasks_app", prog_name="tasks-app")
def group() -> None:
    """Durable jobs on PostgreSQL and Celery.

    The database is TASKS_APP_DATABASE_URL; without it, the embedded one of ./.tasks_app.
    """


for command in (
    *(demo, up, down, urls, migrate),
    *(list_, show, stats, create, cancel, requeue),
    *(scan, work),
):
    group.add_command(command)


def main() -> None:
    """Run a command; errors are one sentence and the next step, never a traceback."""
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
        if getattr(error.orig, "sqlstate", None) != _UNDEFINED_TABLE:
            raise
        _end("The schema is missing. Run: tasks-app migrate", NO)
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
