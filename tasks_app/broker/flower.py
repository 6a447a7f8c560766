"""Flower controls our workers, so nobody on another machine gets to it without a password.

By default Flower listens on every address, without a password.
"""

from __future__ import annotations

from typing import Any

import click
from celery import Celery
from celery.signals import import_modules

from tasks_app.broker.checks.startup import ends_the_process
from tasks_app.domain.config.addresses import is_local
from tasks_app.domain.errors import ConfigurationError

HERE = "127.0.0.1"
COMMANDS = ("flower", "dashboard")
"""Celery's commands that start Flower."""


def guard_flower(app: Celery) -> None:
    """Check Flower's options before it listens; it imports the app's modules first of all."""

    @import_modules.connect(sender=app, weak=False)
    @ends_the_process
    def look(**_: Any) -> None:
        """Do nothing in a worker or beat, which import the modules, too."""
        context = click.get_current_context(silent=True)
        if context is not None and context.info_name in COMMANDS:
            from tornado.options import options  # noqa: PLC0415  it comes with Flower

            check_address(options)


def check_address(options: Any) -> None:
    """Pass if there is a password, or a local address; without an address, set 127.0.0.1.

    Raises:
        ConfigurationError: anybody could shut workers down.
    """
    if options.basic_auth or options.auth or options.auth_provider or options.unix_socket:
        return
    if not options.address:
        options.address = HERE
    if not is_local(options.address):
        raise ConfigurationError(
            f"Flower has no password, and {options.address} is an address that others can reach. "
            "Set FLOWER_BASIC_AUTH=name:password, or FLOWER_ADDRESS=127.0.0.1."
        )
