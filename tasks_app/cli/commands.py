"""Commands made of action records, and the options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from types import MappingProxyType, ModuleType
from typing import Any
from uuid import UUID

import click

from tasks_app.actions.action import Action, ActionResult, Taken, actions_of, taken
from tasks_app.cli import output
from tasks_app.cli.database import as_why, caller, settings, transaction
from tasks_app.domain.tasks.error_text import parse_fingerprint
from tasks_app.runtime.handlers.registry import load_handlers


def command_of(
    action: Action, name: str = "", words: str | None = None, **preset: Any
) -> click.Command:
    """Return the command of an action; the fields in ``preset`` are not asked for.

    ``name`` and ``words`` are its name and help where they are not the action's own.
    """

    def run(*, json_: bool, **given: Any) -> None:
        target = given.pop(action.on) if action.on else None
        print_done(carry_out(action, target, {**given, **preset}), json_=json_)

    run.__doc__ = words or action.run.__doc__
    command = options(target_of(action), params_of(action, preset), output.as_json)(run)
    return click.command(name or action.command.split()[-1])(command)


def target_of(action: Action) -> Callable[[Command], Command]:
    """Return the argument that says what the action is for."""
    if not action.on:
        return options()
    kind = int if action.is_of_an_id else str
    check = _digits if action.on == "fingerprint" else None
    return options(click.argument(action.on, type=kind, callback=check))


def _digits(_: click.Context, __: click.Parameter, text: str) -> str:
    return fingerprint_digits(text)


def params_of(action: Action, preset: Collection[str] = ()) -> Callable[[Command], Command]:
    """Return the arguments and options of its fields; there is always ``--why``."""
    asked = [each for each in taken(action.takes) if each.param.flag and each.name not in preset]
    asks_why = any(each.param.flag == "--why" for each in taken(action.takes))
    return options(*map(_parameter, asked), *([] if asks_why else [as_why]))


def _parameter(of: Taken) -> Callable[[Command], Command]:
    given = of.param
    if not given.flag.startswith("--"):
        return click.argument(of.name, type=_typed(of), required=of.required)
    return click.option(
        given.flag,
        of.name,
        type=_typed(of),
        required=of.required,
        help=given.help,
        metavar=given.metavar,
    )


def _typed(of: Taken) -> click.ParamType[Any]:
    if of.param.choices:
        return click.Choice(of.param.choices)
    if of.kind is int and (of.least, of.most) != (None, None):
        return click.IntRange(of.least, of.most)
    return _TYPES.get(of.kind, click.STRING)


class _Moment(click.ParamType[datetime]):
    name = "text"

    def convert(self, value: Any, *_: Any) -> datetime:
        return value if isinstance(value, datetime) else moment(value)


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


_TYPES: dict[type, click.ParamType[Any]] = {int: click.INT, UUID: click.UUID, datetime: _Moment()}


def carry_out(
    action: Action, target: Any, given: Mapping[str, Any] = MappingProxyType({})
) -> ActionResult:
    """Carry it out in a transaction, for who called the command."""
    if action.needs_handlers:
        load_handlers(settings().modules)
    said = {name: value for name, value in given.items() if value is not None}
    with transaction() as connection:
        return action.run(connection, target, action.takes(**said), caller())


def print_done(done: ActionResult, *, json_: bool) -> None:
    """Say what came of it, and exit with 1 where the answer is no."""
    if done.fields is None:
        output.refuse(done.said)
    output.answer(done.said, done.fields, json_=json_)


def add_commands(group: click.Group, module: ModuleType) -> None:
    """Add the commands of its actions whose words begin with the group's."""
    for action in actions_of(module):
        if action.command.startswith(f"{group.name} "):
            group.add_command(command_of(action))


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


def fingerprint_digits(text: str) -> str:
    """Return the fingerprint that a command was given.

    Raises:
        click.BadParameter: it is none.
    """
    try:
        return parse_fingerprint(text).hex()
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
