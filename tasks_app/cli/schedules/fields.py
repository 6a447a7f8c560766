"""What commands on schedules are given, and what they say of one."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import click

from tasks_app.cli import listing, output
from tasks_app.cli.arguments import moment, options
from tasks_app.domain.explain.words import exact
from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.runtime.encryption.values import masks

timing = options(
    click.option("--cron", help="'30 2 * * *'; six fields begin with seconds."),
    click.option("--every", help="An interval: 90s, 15m, 6h."),
    click.option("--at", help="One instant, ISO 8601 with a zone."),
    click.option("--timezone", help="The time zone of --cron. Default: UTC."),
    click.option("--calendar", help="Its days are days off; '' for none."),
    click.option("--on-day-off", help="skip (default) or next_working_day."),
    click.option("--starts-at", help="ISO 8601 with a zone."),
    click.option("--ends-at", help="ISO 8601 with a zone."),
)


policies = options(
    click.option("--queue", help="Default: the handler's queue where it is known."),
    click.option("--priority", type=int, help="0 is first, 9 last."),
    click.option("--missed", help="skip, fire_once (default) or fire_all(100, 1d)."),
    click.option("--overlap", help="allow (default), skip, queue or replace."),
    click.option("--jitter", help="Tasks become due up to this much later."),
)


def read_options(given: dict[str, Any]) -> Any:
    moments = ("at", "starts_at", "ends_at")
    return {
        word: moment(value) if word in moments else value
        for word, value in given.items()
        if value is not None
    }


def known(found: Any, name: str) -> Any:
    if found is None:
        output.refuse(f"There is no schedule {name}. Run: tasks-app schedules list")
    return found


def tell(made: Schedule, *, json_: bool) -> None:
    words = f"{made.explain()}.\nNext: {shown_at(made.next_run_at)}"
    output.answer(words, fields(made), json_=json_)


def line(schedule: Schedule, now: datetime, *, wide: bool) -> list[str]:
    zone = f" {schedule.zone}" if schedule.kind == "cron" else ""
    when = f"{schedule.kind} {schedule.expression}{zone}"
    instants = schedule.next_run_at, schedule.last_run_at
    outcome, source = schedule.last_outcome, schedule.declared_in or schedule.changed_by
    return [
        *(schedule.name, schedule.task, when, "yes" if schedule.enabled else "no"),
        *(listing.at(at, now, wide=wide) for at in instants),
        *("" if schedule.remark else output.cell(outcome), output.cell(source)),
    ]


def fields(schedule: Schedule) -> dict[str, Any]:
    try:
        words = schedule.explain()
    except ValueError as error:
        words = str(error)
    return {
        "name": schedule.name,
        "words": words,
        **{word: value for word, value in schedule.plain().items() if word != "options"},
        "payload": masks().value(schedule.task, json.loads(schedule.payload)),
        **json.loads(schedule.options),
        **{
            word: getattr(schedule, word)
            for word in (
                *("next_run_at", "queued_at", "last_run_at", "last_task_id", "last_outcome"),
                *("remark", "declared_in", "changed_by", "created_at"),
            )
        },
    }


def shown_at(at: datetime | None) -> str:
    return "never" if at is None else exact(at)
