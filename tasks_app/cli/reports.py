"""``audit`` and ``report``: actions of operators, and results of a period."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from textwrap import wrap
from typing import Any

import click

from tasks_app.cli import output
from tasks_app.cli.database import open_database, settings, transaction
from tasks_app.domain.durations import parse_duration
from tasks_app.domain.tasks.error_text import printable
from tasks_app.monitor.report import Report, counted, headline, read_report, sections, summary
from tasks_app.monitor.report_html import page
from tasks_app.pool.operations import audit as rows
from tasks_app.pool.operations.audit import AuditLine
from tasks_app.pool.schema import check_version
from tasks_app.pool.tables import database_now
from tasks_app.pool.tasks.browse import outlines


@click.command()
@click.argument("line", type=int, required=False)
@click.option("--action", help="Only this one: cancel, pause, 'schedule disable'.")
@click.option("--before", type=int, help="Only lines below this one.")
@output.most_option(20)
@output.wide_option
@output.json_option
def audit(line: int | None, *, wide: bool, json_: bool, **filters: Any) -> None:
    """List what operators did, newest first. With LINE show one.

    The token of a bulk is its first line; with it this shows all its steps.
    """
    if line is not None:
        _print_line(line, json_=json_)
        return
    with transaction() as connection:
        found, now = rows.find(connection, **filters), database_now(connection)
    if json_:
        output.print_json(found)
        return
    columns = ("line", "when", "action", "bulk", "tasks", "who", *["role"] * wide)
    lines = [
        [
            *(str(one.id), output.format_instant(one.at, now, wide=wide), one.action),
            *(output.cell(one.bulk), str(one.number), one.who, *[one.role] * wide),
        ]
        for one in found
    ]
    output.print_rows(
        columns, lines, list(map(_what, found)), remark="what", cut=("action", "who"), wide=wide
    )


def _print_line(token: int, *, json_: bool) -> None:
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
    words = [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in line.what.items()]
    if line.bulk is None and line.ids and "ids" not in line.what:
        words.insert(0, f"ids={json.dumps(line.ids[:20])}")
    return " ".join(words)


@click.command()
@click.option(
    "--since", default="24h", show_default=True, help="How long ago, as 7d, or an instant."
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write one page to mail: no script, nothing to load.",
)
@output.json_option
def report(*, since: str, html: Path | None, json_: bool) -> None:
    """Report a period: how much was done, how well, and what is new.

    It leaves out the last two minutes. Of errors it shows class and place, never a message.
    """
    begin = _since(since)
    given = settings()
    with open_database() as database:
        with database.begin() as connection:
            check_version(connection)
        try:
            found = read_report(database, given, begin)
        except ValueError as error:
            raise click.BadParameter(f"{error}.", param_hint="'--since'") from None
    if html is not None:
        try:
            html.write_text(page(found), encoding="utf-8")
        except OSError as error:
            raise click.BadParameter(f"{error.strerror}.", param_hint="'--html'") from None
        output.print_answer(f"Written: {html}", found, json_=json_)
    elif json_:
        output.print_json(found)
    else:
        click.echo("\n".join(_lines(found)))


def _since(text: str) -> datetime | timedelta:
    try:
        return parse_duration(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):  # of years that no zone has
        words = f"{text!r:.40} isn't a time. Write 24h, 7d or an instant as 2026-01-31T09:00Z."
        raise click.BadParameter(words, param_hint="'--since'") from None


def _lines(found: Report) -> Iterator[str]:
    most = min(output.width() or 80, 80)  # people mail it as text
    yield f"tasks_app, {headline(found)}"
    yield counted(found)
    yield ""
    for sentence in summary(found):
        yield from wrap(sentence, most, subsequent_indent=output.INDENT)
    for section in sections(found):
        yield ""
        yield click.style(printable(section.title, keep=""), bold=True)
        if not section.rows:
            yield output.INDENT + section.otherwise
            continue
        yield from output.table_lines(
            section.columns,
            section.rows,
            section.remarks or ("",) * len(section.rows),
            remark="",
            most=most,
            cut=section.columns[: section.words],
        )
