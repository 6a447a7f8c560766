"""``celery … flower``: Flower's own command, or the extra that brings it.

Celery looks for commands before it loads an app, and would know none of this name. Every start of
``celery`` imports this module.
"""

from __future__ import annotations

import sys

import click

USAGE = 2

try:
    from flower.command import flower
except ImportError:

    @click.command(
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
        add_help_option=False,
    )
    @click.argument("options", nargs=-1, type=click.UNPROCESSED)
    def flower(options: tuple[str, ...]) -> None:  # noqa: ARG001  Flower's, whatever they are
        """Is not installed: pip install 'tasks_app[flower]'."""
        click.echo("Flower is not installed. Run: pip install 'tasks_app[flower]'", err=True)
        sys.exit(USAGE)


__all__ = ["flower"]
