"""Actions of operators on one task or many, ``edit``, ``rest``."""

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
from tasks_app.cli.commands import DONE_FIELDS, json_object, options, params_of
from tasks_app.cli.database import caller, load_modules, open_engine, transaction
from tasks_app.domain.durations import count
from tasks_app.domain.errors import EXIT_NO
from tasks_app.domain.operations import DONE, WAITING, parse_patch
from tasks_app.domain.tasks.options import check_id
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.pool.tasks import browse
from tasks_app.pool.tasks.requeue import Requeued
from tasks_app.runtime.api.amend_waiting import Changed, refusal_to_run_now
from tasks_app.runtime.api.bulk import Foreseen, foresee_bulk, foresee_rest, run_bulk, start_bulk
from tasks_app.runtime.api.bulk_step import SHOWN as HAS_IDS
from tasks_app.runtime.api.bulk_step import Done

first = click.option(
    "--first", type=click.IntRange(1), help="Act on this many, and say how to go on."
)
dry_run = click.option("--dry-run", is_flag=True, help="Only count the tasks; change nothing.")
why = click.option("--why", metavar="TEXT", help="Why; audit, trail and `explain` show it.")


_named = options(
    click.option("--name", help="Tasks of this name."),
    click.option("--queue", help="Of this queue."),
    click.option("--biz-key", help="Of this business object: order:42."),
    click.option("--group", type=int, metavar="ID", help="Members of this group."),
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
retrying = click.option(
    "--retrying", is_flag=True, default=None, help="Only those that wait for another attempt."
)
rate = click.option("--rate", metavar="N/TIME", help="This many in this time: 50/1s.")


def task_command(word: str) -> click.Command:
    """Return the command of an action: on ids one by one, else in a bulk."""
    action = BY_WORD[word]
    own = [each.name for each in taken(action.takes)]

    def run(*, ids: tuple[int, ...], json_: bool, **given: Any) -> None:
        words = {name: given.pop(name) for name in (*own, *(["rate"] * action.takes_rate))}
        words = {name: value for name, value in words.items() if value is not None}
        selects = any(value is not None and value is not False for value in given.values())
        if not ids or selects or "rate" in words:
            if "kill_after" in words:
                raise click.UsageError("--kill-after is for tasks that you name: give ids alone.")
            run_on_many(word, ids, {**given, **words}, json_=json_)
        else:
            run_on_each(ids, partial(action.verb, **words), DONE.get(action.word), json_=json_)

    run.__doc__ = action.run.__doc__
    add = options(
        *([rate] * action.takes_rate),
        click.argument("ids", nargs=-1, type=int),
        params_of(action, ("why",)),
        options(_named, retrying, _aged) if word in WAITING else filters,
        why,
        output.json_option,
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
@output.json_option
def edit(
    ids: tuple[int, ...],
    settings_: tuple[str, ...],
    merge: str | None,
    *,
    json_: bool,
    **given: Any,
) -> None:
    """Change the payloads of waiting tasks.

    With --pool error: of failed ones. Each new payload must fit the handler's model, so
    TASKS_APP_IMPORTS must name the handlers. A task whose payload is refused stays as it is, and
    its id is printed.
    """
    if bool(settings_) == bool(merge):
        raise click.UsageError("Give --set, once or several times, or --merge.")
    patch = json_object(merge) if merge else parse_patch(dict(map(_setting, settings_)))
    load_modules()
    run_on_many("edit", ids, given, patch, json_=json_)


@click.command()
@click.argument("token", type=int)
@first
@dry_run
@output.json_option
def rest(token: int, first: int | None, *, dry_run: bool, json_: bool) -> None:
    """Continue a bulk by its token. Tasks newer than its start are left out."""
    load_modules()
    with open_engine() as engine:
        done: Foreseen | Done | None
        if dry_run:
            done = foresee_rest(engine, token)
        else:
            done = run_bulk(engine, token, first=first, by=caller())
    if done is None:
        output.refuse(f"There is no bulk {token}. Run: tasks-app audit")
    _print_bulk(done, json_=json_)


def _setting(given: str) -> tuple[str, Any]:
    path, equals, value = given.partition("=")
    try:
        return path, json.loads(value)
    except ValueError:
        problem = "isn't JSON; put text in quotes" if equals else "has no ="
        raise click.BadParameter(f"{path} {problem}", param_hint="--set") from None


def run_on_each(
    ids: Sequence[int], act: Callable[..., Any], done: str | None, *, json_: bool
) -> None:
    """Act on each by itself and print the answers; ``done`` is printed for those that changed."""
    with transaction() as connection:
        by, chosen = caller(), sorted({*map(check_id, ids)})
        states = {each.id: each.state for each in browse.outlines(connection, chosen)}
        answers = {one: act(connection, one, by=by) for one in chosen}
        waits = {
            one: refusal_to_run_now(connection, one)
            for one, answer in answers.items()
            if answer is Changed.WAITS
        }
    words = {one: done if done and answer in CHANGES else answer for one, answer in answers.items()}
    again = {
        one: " (it had SUCCEEDED, and runs again)"
        for one, answer in answers.items()
        if answer is Requeued.REQUEUED and states.get(one) is State.SUCCEEDED
    }
    told = words | waits
    text = "\n".join(f"{one}  {answer}{again.get(one, '')}" for one, answer in told.items())
    fields = [{"id": task_id, "answer": answer} for task_id, answer in words.items()]
    output.print_answer(text, fields, json_=json_)
    if not set(answers.values()) <= CHANGES:
        sys.exit(EXIT_NO)


def run_on_many(
    action: str,
    ids: Sequence[int],
    given: dict[str, Any],
    patch: Mapping[str, Any] | None = None,
    *,
    json_: bool,
) -> None:
    """Open a bulk on what is ``given`` and begin it, or only count its tasks."""
    number, dry = given.pop("first"), given.pop("dry_run")
    chosen = {**given, "ids": tuple(dict.fromkeys(ids))}
    with open_engine() as engine:
        if dry:
            _print_bulk(foresee_bulk(engine, action, patch=patch, **chosen), json_=json_)
        token = start_bulk(engine, action, patch=patch, by=caller(), **chosen)
        click.echo(f"bulk {token}", err=json_)
        done = run_bulk(engine, token, first=number, by=caller())
    assert done is not None  # noqa: S101  it was opened just now
    if number is None and len(chosen["ids"]) <= HAS_IDS:  # the bulk lists no more ids than that
        met = {*done.ids, *chain(*done.left_out.values())}
        if unmet := [one for one in chosen["ids"] if one not in met]:
            reason = "not found, already like this, or with a state or options that do not fit"
            done.left_out[reason] = unmet
    _print_bulk(done, json_=json_)


def _print_bulk(done: Foreseen | Done, *, json_: bool) -> NoReturn:
    counts = sorted(done.counts.items()) if isinstance(done, Foreseen) else []
    if json_:
        listed = [{"name": of[0], "state": of[1], "number": number} for of, number in counts]
        fields = {"counts": listed, "left_out": done.left_out, "changed": False}
        if isinstance(done, Done):
            fields = {name: getattr(done, name) for name in DONE_FIELDS}
        output.print_json(fields)
        sys.exit(EXIT_NO if done.left_out else 0)
    if isinstance(done, Foreseen):
        output.print_table(("name", "state", "tasks"), [(*of, number) for of, number in counts])
        total = done.counts.total()
        verb = "is" if total == 1 else "are"
        click.echo(f"{count(total, 'task')} {verb} selected. Nothing was changed.")
    else:
        words = [f"{number} {answer}" for answer, number in sorted(done.answers.items())]
        click.echo(", ".join(words) or "nothing to do")
        if 0 < len(done.ids) <= 20:  # noqa: PLR2004  the audit has more
            click.echo(f"ids: {output.shown_ids(done.ids)}")
    for reason, ids in sorted(done.left_out.items()):
        alone = "it is" if len(ids) == 1 else "they are"
        click.echo(f"{len(ids)} left as {alone}, {reason}: {output.shown_ids(ids)}", err=True)
    if isinstance(done, Done) and done.more:
        output.print_text(f"To see the results: tasks-app audit {done.token}")
        output.print_text(f"To go on: tasks-app rest {done.token}")
    sys.exit(EXIT_NO if done.left_out else 0)
