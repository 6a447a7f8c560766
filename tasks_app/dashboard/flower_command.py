"""The command celery dashboard. Every start of celery imports this file, so it imports little."""

from __future__ import annotations

import sys

import click

from tasks_app.domain.errors import EXIT_USAGE, ConfigurationError


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def dashboard(context: click.Context, options: tuple[str, ...]) -> None:
    """Flower with the pool's dashboard in it.

    OPTIONS are those of Flower: celery flower --help.
    """
    try:
        from tasks_app.dashboard.flower import serve  # noqa: PLC0415  extras bring it
        from tasks_app.domain.config.settings import load_settings  # noqa: PLC0415
    except ModuleNotFoundError as error:
        needs = f"The dashboard in Flower needs {error.name}."
        click.echo(f"{needs} Run: pip install 'tasks_app[dashboard,flower]'", err=True)
        sys.exit(EXIT_USAGE)
    try:
        settings = load_settings()
        _ = settings.database
        serve(context, settings, options)
    except ConfigurationError as error:
        click.echo(str(error), err=True)
        sys.exit(EXIT_USAGE)
