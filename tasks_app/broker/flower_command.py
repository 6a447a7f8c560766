"""``celery … flower``: Flower's own command, or the name of the extra that installs it.

Celery collects commands before it loads an app, so every start of ``celery`` imports this module.
"""

from __future__ import annotations

import sys

import click

try:
    from flower.command import flower
except ImportError:

    @click.command(
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
        add_help_option=False,
    )
    @click.argument("options", nargs=-1, type=click.UNPROCESSED)
    def flower(options: tuple[str, ...]) -> None:  # noqa: ARG001  Flower's, which we do not know
        """Is not installed: pip install 'tasks_app[flower]'."""
        click.echo("Flower is not installed. Run: pip install 'tasks_app[flower]'", err=True)
        sys.exit(2)


__all__ = ["flower"]
