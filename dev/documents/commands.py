"""docs/reference/cli.md and, with all options, commands.md: every command, from click."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

import click

from dev.documents.source import cell, generated
from tasks_app.cli.group import COMMANDS, group

ABOUT = """
`celery -A tasks_app pool …` takes the same commands, and gives the same messages and exit codes.
`--json` prints one document on standard output; errors are text on standard error.

Exit codes: 0 done; 1 the answer is no; 2 wrong usage or configuration; 3 the database or the broker
does not answer.
"""
SHORT = """
A line for each. Options: `tasks-app COMMAND --help`, or [all of them](README.md#commands).
"""
SUBJECTS = {
    "Set up": "demo up down urls migrate grants notify config doctor",
    "Run": "work scan metrics dashboard healthz db-scheduler",
    "Look": "list show explain stats report audit alerts stacks",
    "Create and change tasks": "create cancel requeue errors edit run-now reschedule reprioritise"
    " move hold release enable disable rest",
    "Queues and limits": "pause resume queues limits unblock fair breakers locks",
    "Schedules, groups, batches": "schedules groups flows events batch",
    "Move, erase, maintain": "export import cancel-moved encryption erase prune maintain",
}


def short_page() -> str:
    """Return the page with a line for each command.

    Raises:
        LookupError: a command has no subject.
    """
    if missing := set(" ".join(SUBJECTS.values()).split()) ^ set(COMMANDS):
        raise LookupError(f"SUBJECTS of dev/documents/commands.py: {', '.join(sorted(missing))}")
    lines = generated("Commands", "tasks_app/cli/", SHORT + ABOUT)
    lines += ["| `tasks-app …` | does |", "|---|---|"]
    with click.Context(group) as context:
        for subject, names in SUBJECTS.items():
            lines.append(f"| **{subject}** | |")
            lines += [_line(name, group.get_command(context, name)) for name in names.split()]
    return "\n".join(lines) + "\n"


def _line(name: str, command: click.Command | None) -> str:
    assert command is not None  # noqa: S101
    shown = [f"`{' '.join([name, *_arguments(command)])}`"]
    if isinstance(command, click.Group):
        verbs = sorted(command.commands.items())
        shown += [f"`{verb}`" for verb, each in verbs if not each.hidden]
    return f"| {' '.join(shown)} | {_escaped(command.get_short_help_str(200))} |"


def page() -> str:
    """Return the page."""
    lines = generated("All options of the commands", "tasks_app/cli/", ABOUT)
    for words, command in _leaves(group):
        lines += [f"## tasks-app {' '.join(words)}", "", f"`{_usage(words, command)}`", ""]
        for paragraph in textwrap.dedent(command.help or "").replace("\b", "").split("\n\n"):
            lines += [_escaped(" ".join(paragraph.split())), ""]
        rows = [row for each in command.params if (row := _row(each))]
        if rows:
            lines += ["| option | takes | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _leaves(command: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield words, command
        return
    with click.Context(command) as context:
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from _leaves(child, *words, name)


def _usage(words: tuple[str, ...], command: click.Command) -> str:
    return " ".join(["tasks-app", *words, *_arguments(command)])


def _arguments(command: click.Command) -> Iterator[str]:
    for each in command.params:
        if isinstance(each, click.Argument):
            name = (each.metavar or str(each.name).upper()) + ("…" if each.nargs == -1 else "")
            yield name if each.required else f"[{name.strip('[]')}]"


def _row(option: click.Parameter) -> str | None:
    if not isinstance(option, click.Option) or option.hidden:
        return None
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    default = option.default if isinstance(option.default, str | int) else None
    is_said = default is not None and not isinstance(default, bool) and default != ""
    more = f" Default: `{default}`." if is_said else ""
    often = " May be given several times." if option.multiple else ""
    text = _escaped(" ".join((option.help or "").split()))
    return f"| {names} | {_takes(option)} | {(text + more + often).strip()} |"


def _takes(option: click.Option) -> str:
    match option.type:
        case _ if option.is_flag:
            return ""
        case click.Choice(choices=choices):
            return ", ".join(f"`{getattr(each, 'value', each)}`" for each in choices)
        case click.types.IntParamType():
            return "a number"
        case click.types.FloatParamType():
            return "a number"
        case _:
            return "text"


def _escaped(text: str) -> str:
    """What Markdown would take for markup."""
    return cell(re.sub(r"([*<])", r"\\\1", text))
