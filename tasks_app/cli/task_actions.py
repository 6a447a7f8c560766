"""What an operator does to tasks, one or many: actions, ``edit``, ``rest``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NoReturn

import click

from tasks_app.actions.action import taken
from tasks_app.actions.tasks import BY_WORD, CHANGES
from tasks_app.cli import output
from tasks_app.cli.commands import json_object, options, params_of
from tasks_app.cli.database import caller, connected, settings, transaction
from tasks_app.domain.durations import count
from tasks_app.domain.errors import NO
from tasks_app.domain.operations import DONE, WAITING, parse_patch
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.runtime.api.bulk import SHOWN as HAS_IDS
from tasks_app.runtime.api.bulk import (
    Done,
    Foreseen,
    foresee_bulk,
    foresee_rest,
    run_bulk,
    start_bulk,
)
from tasks_app.runtime.handlers.registry import load_handlers

first = click.option(
    "--first", type=click.IntRange(1), help="Act on this many, and say how to go on."
)
dry_run = click.option("--dry-run", is_flag=True, help="Only count the tasks; change nothing.")
why = click.option("--why", metavar="TEXT", help="Why; audit, trail and `explain` show it.")


_named = options(
    click.option("--name", help="Tasks of this name."),
    click.option("--queue", help="Of this queue."),
    click.option("--biz-key", help="Of this business object: order:42."),
)
_placed = options(
    click.option(
        "--pool", type=click.Choice([str(pool) for pool in Pool]), help="Only those in this pool."
    ),
    click.option(
        "--state",
        type=click.Choice([str(s) for s in State], case_sensitive=False),
        help="Only those in this state.",
    ),
    click.option("--fingerprint", help="Of the error, as `errors` lists it."),
)
_aged = options(
    click.option("--error-kind", help="Class of the last error."),
    click.option("--error-text", help="Part of the last error."),
    click.option("--older-than", help="Created, or finished, longer ago than this: 30m, 6h, 2d."),
    click.option("--newer-than", help="Created, or finished, within this long."),
    first,
    dry_run,
)
filters = options(_named, _placed, _aged)
"""Which tasks, and how many of them now."""
waiting_filters = options(
    _named,
    click.option(
        "--retrying", is_flag=True, default=None, help="Only those that wait for another attempt."
    ),
    _aged,
)
"""The same of those that wait."""


def selects(given: dict[str, Any]) -> bool:
    """Say whether any option selects tasks."""
    return any(value is not None and value is not False for value in given.values())


SHOWN = 20
"""Ids on a line; the audit has all."""
_UNMET = "not there, so already, or with a state or options that do not fit"


rate = click.option("--rate", metavar="N/TIME", help="So many in which time: 50/1s.")
"""They become due one after the other, not all at once."""


def of_tasks(word: str) -> click.Command:
    """Return the command of an action: on ids one by one, else in a bulk."""
    action = BY_WORD[word]
    own = [each.name for each in taken(action.takes)]

    def run(*, ids: tuple[int, ...], json_: bool, **given: Any) -> None:
        words = {name: given.pop(name) for name in (*own, *(["rate"] * action.takes_rate))}
        words = {name: value for name, value in words.items() if value is not None}
        if not ids or selects(given) or "rate" in words:
            many(word, ids, {**given, **words}, json_=json_)
        else:
            each(ids, partial(action.verb, **words), DONE.get(action.word), json_=json_)

    run.__doc__ = action.run.__doc__
    add = options(
        *([rate] * action.takes_rate),
        click.argument("ids", nargs=-1, type=int),
        params_of(action, ("why",)),
        waiting_filters if word in WAITING else filters,
        why,
        output.as_json,
    )
    return click.command(word)(add(run))


@click.command()
@click.argument("ids", nargs=-1, type=int)
@click.option(
    "--set", "settings_", multiple=True, metavar="PATH=JSON", help="customer.zip='\"1\"'."
)
@click.option("--merge", help="A JSON object; null in it removes a key (RFC 7396).")
@filters
@why
@output.as_json
def edit(
    ids: tuple[int, ...],
    settings_: tuple[str, ...],
    merge: str | None,
    *,
    json_: bool,
    **given: Any,
) -> None:
    """Change the payloads of waiting tasks. --pool error: of failed ones.

    Each new payload must fit the handler's model, so TASKS_APP_IMPORTS must name the handlers.
    A task whose payload is refused stays as it is, and its id is printed.
    """
    if bool(settings_) == bool(merge):
        raise click.UsageError("Give --set, once or several times, or --merge.")
    patch = json_object(merge) if merge else parse_patch(dict(map(_setting, settings_)))
    load_handlers(settings().modules)
    many("edit", ids, given, patch, json_=json_)


@click.command()
@click.argument("token", type=int)
@first
@dry_run
@output.as_json
def rest(token: int, first: int | None, *, dry_run: bool, json_: bool) -> None:
    """Continue a bulk by its token. Tasks newer than its start are left out."""
    load_handlers(settings().modules)
    with connected() as engine:
        done: Foreseen | Done | None
        if dry_run:
            done = foresee_rest(engine, token)
        else:
            done = run_bulk(engine, token, first=first, by=caller())
    if done is None:
        output.refuse(f"There is no bulk {token}. Run: tasks-app audit")
    _tell(done, json_=json_)


def many(
    action: str,
    ids: Sequence[int],
    given: dict[str, Any],
    patch: Mapping[str, Any] | None = None,
    *,
    json_: bool,
) -> None:
    """Open a bulk on what is ``given`` and begin it, or count what it would mean."""
    number, dry = given.pop("first"), given.pop("dry_run")
    chosen = {**given, "ids": tuple(dict.fromkeys(ids))}
    with connected() as engine:
        if dry:
            _tell(foresee_bulk(engine, action, patch=patch, **chosen), json_=json_)
        token = start_bulk(engine, action, patch=patch, by=caller(), **chosen)
        click.echo(f"bulk {token}", err=json_)
        done = run_bulk(engine, token, first=number, by=caller())
    assert done is not None  # noqa: S101  it was opened just now
    if number is None:
        _name_the_unmet(done, chosen["ids"])
    _tell(done, json_=json_)


def _name_the_unmet(done: Done, ids: Sequence[int]) -> None:
    """Leave out what was named by its id and not changed. Of more ids than it has, nobody knows."""
    met = {*done.ids, *chain(*done.left_out.values())}
    unmet = [one for one in ids if one not in met]
    if unmet and len(ids) <= HAS_IDS:
        done.left_out[_UNMET] = unmet


def _tell(done: Foreseen | Done, *, json_: bool) -> NoReturn:
    if json_:
        output.print_json(_fields(done))
        sys.exit(NO if done.left_out else 0)
    if isinstance(done, Foreseen):
        counts = sorted(done.counts.items())
        output.print_table(("name", "state", "tasks"), [(*of, n) for of, n in counts])
        number = done.counts.total()
        meant = f"{count(number, 'task')} {'is' if number == 1 else 'are'} meant"
        click.echo(f"{meant}. Nothing was changed.")
    else:
        told = [f"{number} {answer}" for answer, number in sorted(done.answers.items())]
        click.echo(", ".join(told) or "nothing to do")
        if 0 < len(done.ids) <= SHOWN:
            click.echo(f"ids: {_ids(done.ids)}")
    for reason, ids in sorted(done.left_out.items()):
        alone = "it is" if len(ids) == 1 else "they are"
        click.echo(f"{len(ids)} left as {alone}, {reason}: {_ids(ids)}", err=True)
    if isinstance(done, Done) and done.more:
        output.say(f"How these went: tasks-app audit {done.token}")
        output.say(f"To go on: tasks-app rest {done.token}")
    sys.exit(NO if done.left_out else 0)


def _fields(done: Foreseen | Done) -> dict[str, Any]:
    if isinstance(done, Done):
        names = ("token", "answers", "ids", "left_out", "more")
        return {name: getattr(done, name) for name in names}
    counts = [
        {"name": name, "state": state, "number": number}
        for (name, state), number in sorted(done.counts.items())
    ]
    return {"counts": counts, "left_out": done.left_out, "changed": False}


def _ids(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids[:SHOWN])) + (" …" if len(ids) > SHOWN else "")


def _setting(given: str) -> tuple[str, Any]:
    path, equals, value = given.partition("=")
    try:
        return path, json.loads(value)
    except ValueError:
        problem = "is no JSON; put text in quotes" if equals else "has no ="
        raise click.BadParameter(f"{path} {problem}", param_hint="--set") from None


def each(ids: Sequence[int], act: Callable[..., Any], done: str | None, *, json_: bool) -> None:
    """Act on each by itself and print the answers; ``done`` is said of those that were changed."""
    with transaction() as connection:
        by = caller()
        answers = {one: act(connection, one, by=by) for one in sorted({*ids})}
    said = {one: done if done and answer in CHANGES else answer for one, answer in answers.items()}
    told = "\n".join(f"{task_id}  {answer}" for task_id, answer in said.items())
    fields = [{"id": task_id, "answer": answer} for task_id, answer in said.items()]
    output.answer(told, fields, json_=json_)
    if not set(answers.values()) <= CHANGES:
        sys.exit(NO)
