"""What several commands are given: JSON, instants, groups of options."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from tasks_app.domain.tasks.fingerprint import parse_fingerprint

Command = Callable[..., None]
INSTANT = "2030-01-31T09:00+01:00"


def options(*given: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds options, listed by ``--help`` in this order."""

    def add(command: Command) -> Command:
        for option in reversed(given):
            command = option(command)
        return command

    return add


def json_value(payload: str) -> Any:
    """Return the value that a command was given as JSON.

    Raises:
        click.BadParameter: it is not JSON.
    """
    try:
        return json.loads(payload)
    except ValueError as error:
        raise click.BadParameter(f"is no JSON ({error})", param_hint="PAYLOAD") from None


def json_object(payload: str) -> dict[str, Any]:
    """Return the object that a command was given.

    Raises:
        click.BadParameter: it is not JSON, or no object.
    """
    value = json_value(payload)
    if not isinstance(value, dict):
        raise click.BadParameter('must be a JSON object, such as {"order_id": 42}')
    return value


def moment(text: str, hint: str | None = None) -> datetime:
    """Return the instant that a command was given.

    Raises:
        click.BadParameter: it is not ISO 8601, or has no zone.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no ISO 8601 instant. Write it so: {INSTANT}.", param_hint=hint
        ) from None
    if found.tzinfo is None:
        raise click.BadParameter(
            f"{text!r} has no time zone. Write it so: {INSTANT}; Z is UTC.", param_hint=hint
        )
    return found


def fingerprint_digits(text: str) -> str:
    """Return the fingerprint that a command was given.

    Raises:
        click.BadParameter: it is none.
    """
    try:
        return parse_fingerprint(text).hex()
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
