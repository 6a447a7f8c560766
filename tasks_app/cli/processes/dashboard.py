"""``dashboard``: pages for people, and their JSON."""

from __future__ import annotations

import click

from tasks_app.cli.database import settings
from tasks_app.domain.errors import ConfigurationError


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=5580, show_default=True, help="Its port."
)
def dashboard(host: str, port: int) -> None:
    """Serve the dashboard until Ctrl-C. It needs no broker.

    Without TASKS_APP_DASHBOARD_AUTH=name:password it answers this machine only.
    """
    try:
        from tasks_app.dashboard.doors.server import listen, serve  # noqa: PLC0415  an extra brings it
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"The dashboard needs {error.name}. Run: pip install 'tasks_app[dashboard]'"
        ) from error
    given = settings()
    _ = given.database
    sockets = listen(given, host, port)
    click.echo(f"Dashboard: http://{host}:{port}/")
    serve(given, sockets)
