"""``audit``: what operators did, and how it went with the tasks since."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

import click

from tasks_app.cli import listing, output
from tasks_app.cli.database import transaction
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.operations import audit as rows
from tasks_app.pool.operations.audit import AuditLine
from tasks_app.pool.tasks.browse import outlines


@click.command()
@click.argument("line", type=int, required=False)
@click.option("--action", help="Only this one: cancel, pause, 'schedule disable'.")
@click.option("--before", type=int, help="Only lines below this one.")
@click.option(
    "--most", type=click.IntRange(1, 1000), default=20, show_default=True, help="At most so many."
)
@listing.as_wide
@output.as_json
def audit(line: int | None, *, wide: bool, json_: bool, **filters: Any) -> None:
    """List what operators did, newest first. With LINE show one.

    The token of a bulk is its first line; given that, all its steps are shown.
    """
    if line is not None:
        _show(line, json_=json_)
        return
    with transaction() as connection:
        found, now = rows.find(connection, **filters), instant(connection)
    if json_:
        output.print_json(found)
        return
    columns = ("line", "when", "action", "bulk", "tasks", "who", *["role"] * wide)
    click.echo(
        "\n".join(
            listing.lay_out(
                columns,
                [
                    [
                        *(str(one.id), output.cell(one.at) if wide else listing.age(one.at, now)),
                        *(one.action, output.cell(one.bulk), str(one.number), one.who, one.role),
                    ][: len(columns)]
                    for one in found
                ],
                [_what(one) for one in found],
                remark="what",
                most=None if wide else listing.width(),
                cut=("action", "who"),
            )
        )
    )


def _show(token: int, *, json_: bool) -> None:
    with transaction() as connection:
        steps = rows.steps(connection, token)
        ids = [one for step in steps for one in step.ids]
        states = Counter(str(outline.state) for outline in outlines(connection, ids))
    if not steps:
        output.refuse(f"There is no line {token}. Run: tasks-app audit")
    if json_:
        output.print_json({"lines": steps, "states": states})
        return
    opening, last = steps[0], steps[-1]
    answers: Counter[str] = Counter()
    left_out: dict[str, list[int]] = defaultdict(list)
    for step in steps:
        answers.update(step.answers)
        for why, some in step.left_out.items():
            left_out[why] += some
    is_bulk = opening.until is not None
    output.print_fields(
        [
            ("action", opening.action),
            ("what", _what(opening)),
            ("at", opening.at),
            ("by", ", ".join(dict.fromkeys(f"{s.who or 'unnamed'} as {s.role}" for s in steps))),
            ("steps", len(steps) - 1 if is_bulk else None),
            ("tasks", sum(step.number for step in steps)),
            *((f"  {answer}", number) for answer, number in answers.items()),
            ("now", ", ".join(f"{n} {state}" for state, n in sorted(states.items())) or None),
            *((f"left as they are: {why}", some) for why, some in left_out.items()),
            ("to go on", f"tasks-app rest {token}" if is_bulk and last.after is not None else None),
        ]
    )


def _what(line: AuditLine) -> str:
    """Say what it was done to, without the values of a patch."""
    words = [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in line.what.items()]
    if line.bulk is None and line.ids and "ids" not in line.what:
        words.insert(0, f"ids={json.dumps(line.ids[:20])}")
    return " ".join(words)
