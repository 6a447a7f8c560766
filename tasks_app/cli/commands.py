"""Commands made of action records, and the options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType, ModuleType
from typing import Any
from uuid import UUID

import click

from tasks_app.actions.action import Action, ActionResult, Taken, actions_of, taken
from tasks_app.cli import output
from tasks_app.cli.database import caller, load_modules, transaction, why_option
from tasks_app.domain.durations import ALLOWED, parse_duration
from tasks_app.domain.tasks.error_text import parse_fingerprint

Command = Callable[..., None]
INSTANT = "2030-01-31T09:00+01:00"
DONE_FIELDS = ("token", "answers", "ids", "left_out", "more")  # of a bulk, in JSON


def add_commands(group: click.Group, module: ModuleType) -> None:
    """Add the commands of the actions whose words begin with the group's."""
    for action in actions_of(module):
        if action.command.startswith(f"{group.name} "):
            group.add_command(command_of(action))


def command_of(
    action: Action, name: str = "", words: str | None = None, **preset: Any
) -> click.Command:
    """Return the command of an action; fields in ``preset`` get no option.

    ``name`` and ``words`` are its name and help, if they differ from the action's.
    """

    def run(*, json_: bool, **given: Any) -> None:
        target = given.pop(action.on) if action.on else None
        print_result(run_action(action, target, {**given, **preset}), json_=json_)

    run.__doc__ = words or action.run.__doc__
    target = options()
    if action.on:
        kind = int if action.has_numeric_target else str
        check = _check_fingerprint if action.on == "fingerprint" else None
        target = options(click.argument(action.on, type=kind, callback=check))
    command = options(target, params_of(action, preset), output.json_option)(run)
    return click.command(name or action.command.split()[-1])(command)


def options(*given: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds options; ``--help`` lists them in this order."""

    def add(command: Command) -> Command:
        for option in reversed(given):
            command = option(command)
        return command

    return add


def params_of(action: Action, preset: Collection[str] = ()) -> Callable[[Command], Command]:
    """Return the arguments and options of its fields; there is always ``--why``."""
    fields = [each for each in taken(action.takes) if each.param.flag and each.name not in preset]
    has_why = any(each.param.flag == "--why" for each in taken(action.takes))
    return options(*map(_parameter, fields), *([] if has_why else [why_option]))


def _parameter(of: Taken) -> Callable[[Command], Command]:
    given = of.param
    kind = _TYPES.get(of.kind, click.STRING)
    if given.choices:
        kind = click.Choice(given.choices)
    elif of.kind is int and (of.least, of.most) != (None, None):
        kind = click.IntRange(of.least, of.most)
    if not given.flag.startswith("--"):
        return click.argument(of.name, type=kind, required=of.required)
    more: Any = {"required": of.required, "help": given.help, "metavar": given.metavar}
    return click.option(given.flag, of.name, type=kind, **more)


class _Instant(click.ParamType[datetime]):
    name = "text"

    def convert(self, value: Any, *_: Any) -> datetime:
        return value if isinstance(value, datetime) else parse_instant(value)


class _Span(click.ParamType[timedelta]):
    name = "text"

    def convert(self, value: Any, *where: Any) -> timedelta:
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(f"{error}. Allowed: {ALLOWED}.", *where)


_TYPES: dict[type, click.ParamType[Any]] = {
    int: click.INT,
    UUID: click.UUID,
    datetime: _Instant(),
    timedelta: _Span(),
}


def run_action(
    action: Action, target: Any, given: Mapping[str, Any] = MappingProxyType({})
) -> ActionResult:
    if action.needs_handlers:
        load_modules()
    fields = {name: value for name, value in given.items() if value is not None}
    with transaction() as connection:
        return action.run(connection, target, action.takes(**fields), caller())


def print_result(done: ActionResult, *, json_: bool) -> None:
    if done.fields is None:
        output.refuse(done.text)
    output.print_answer(done.text, done.fields, json_=json_)


# What a user typed. Each raises click.BadParameter if it cannot be read.


def parse_instant(text: str, hint: str | None = None) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        problem = f"{text!r} isn't an ISO 8601 instant. Write it like this: {INSTANT}."
        raise click.BadParameter(problem, param_hint=hint) from None
    if found.tzinfo is None:
        problem = f"{text!r} has no time zone. Write it like this: {INSTANT}; Z is UTC."
        raise click.BadParameter(problem, param_hint=hint)
    return found


def json_value(payload: str) -> Any:
    try:
        return json.loads(payload)
    except ValueError as error:
        raise click.BadParameter(f"isn't JSON ({error})", param_hint="PAYLOAD") from None


def json_object(payload: str) -> dict[str, Any]:
    value = json_value(payload)
    if not isinstance(value, dict):
        raise click.BadParameter('must be a JSON object, such as {"order_id": 42}')
    return value


def fingerprint_digits(text: str) -> str:
    try:
        return parse_fingerprint(text).hex()
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _check_fingerprint(_: click.Context, __: click.Parameter, text: str) -> str:
    return fingerprint_digits(text)
