"""``report``: what happened since an instant, to read or to mail."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from textwrap import wrap

import click

from tasks_app.cli import listing, output
from tasks_app.cli.database import opened, settings
from tasks_app.domain.durations import parse_duration
from tasks_app.domain.tasks.error_text import printable
from tasks_app.monitor.reports.html import page
from tasks_app.monitor.reports.report import Report, read_report
from tasks_app.monitor.reports.sections import counted, headline, sections, summary
from tasks_app.pool.schema import check_version

WIDTH = 80
"""Unless the terminal is narrower: a report may be sent as text."""
_HINT = "'--since'"


@click.command()
@click.option(
    "--since", default="24h", show_default=True, help="How long ago, as 7d, or an instant."
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write one page to mail: no script, nothing to load.",
)
@output.as_json
def report(*, since: str, html: Path | None, json_: bool) -> None:
    """Report what happened: how much was done, how well, what new.

    The last two minutes are not counted yet. Of errors it shows class and place, never a message.
    """
    begin = _since(since)
    given = settings()
    with opened() as database:
        with database.begin() as connection:
            check_version(connection)
        try:
            found = read_report(database, given, begin)
        except ValueError as error:
            raise click.BadParameter(f"{error}.", param_hint=_HINT) from None
    if html is not None:
        try:
            html.write_text(page(found), encoding="utf-8")
        except OSError as error:
            raise click.BadParameter(f"{error.strerror}.", param_hint="'--html'") from None
        output.answer(f"Written: {html}", found, json_=json_)
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
        words = f"{text!r:.40} is no time. Write 24h, 7d or an instant as 2026-01-31T09:00Z."
        raise click.BadParameter(words, param_hint=_HINT) from None


def _lines(found: Report) -> Iterator[str]:
    most = min(listing.width() or WIDTH, WIDTH)
    yield f"tasks_app, {headline(found)}"
    yield counted(found)
    yield ""
    for sentence in summary(found):
        yield from wrap(sentence, most, subsequent_indent=listing.INDENT)
    for section in sections(found):
        yield ""
        yield click.style(printable(section.title, keep=""), bold=True)
        if not section.rows:
            yield listing.INDENT + section.otherwise
            continue
        yield from listing.lay_out(
            section.columns,
            section.rows,
            section.remarks or ("",) * len(section.rows),
            remark="",
            most=most,
            cut=section.columns[: section.words],
        )
