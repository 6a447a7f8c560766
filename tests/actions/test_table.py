"""Every door offers what the table has, under the same words."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields

import click
import pytest

from tasks_app.actions.action import Action, taken
from tasks_app.actions.table import ACTIONS
from tasks_app.cli.group import group
from tasks_app.dashboard.app import ROUTES
from tasks_app.dashboard.json_api import describe

named = pytest.mark.parametrize(
    "action", ACTIONS, ids=[each.name or each.command for each in ACTIONS]
)
ROUTED = {(path, method): handler for path, handler, method in ROUTES}
OPENAPI = describe(ROUTES, "")["paths"]


def command_of(words: str) -> click.Command:
    command: click.Command = group
    for word in words.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None, words
        command = found
    return command


@named
def test_it_says_what_it_does_and_is_offered(action: Action) -> None:
    assert inspect.getdoc(action.run)
    assert action.path or action.command
    assert not action.path or ("{" in action.path) is bool(action.on)


@named
def test_a_route_of_page_and_api_has_its_role_and_fields(action: Action) -> None:
    for start in ("", "/api") if action.path else ():
        handler = ROUTED[start + action.path, "POST"]
        assert handler.role is action.role
        assert handler.takes is (action.takes if fields(action.takes) else None)
    if action.path:
        said = OPENAPI["/api" + action.path.replace(":path", "")]["post"]
        assert said["summary"] == inspect.getdoc(action.run).partition("\n")[0]  # type: ignore[union-attr]
        body = said["requestBody"]["content"]["application/json"]["schema"]
        assert set(body.get("properties", {})) == {each.name for each in fields(action.takes)}


@named
def test_a_command_takes_its_target_and_fields(action: Action) -> None:
    if not action.command:
        return
    params = {each.name: each for each in command_of(action.command).params}
    on = "ids" if "ids" in params else action.on
    assert on in params or not on
    preset = {"mode"} if action.command == "breakers open" else set()
    for each in taken(action.takes):
        if each.param.flag and each.name not in preset:
            assert params[each.name].required is each.required
    assert {"json_", "why"} & params.keys() or action.command == "pause"


@named
def test_what_is_left_out_has_a_default(action: Action) -> None:
    required = {each.name for each in fields(action.takes) if each.default is MISSING}
    assert required <= {"kind", "target", "dependency", "mode", "resource"}


def test_an_address_holds_any_name() -> None:
    (pause,) = (each for each in ACTIONS if each.name == "queues/pause")
    assert pause.address("a/b c") == "/queues/a%2Fb%20c/pause"
