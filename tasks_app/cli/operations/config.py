"""``config``: which settings are in force, and where they come from."""

from __future__ import annotations

import os
from typing import Any

import click

from tasks_app.cli import listing, output
from tasks_app.cli.database import settings
from tasks_app.domain.config.setting_sources import Effective, effective_settings
from tasks_app.runtime.health_files import RUN_DIR_VARIABLE, project_folder

LONG = 20
"""A longer value stands behind its source, or below it."""


@click.command()
@listing.as_wide
@output.as_json
def config(*, wide: bool, json_: bool) -> None:
    """Show the settings in force here, without secrets."""
    before = dict(os.environ)
    ours = effective_settings(settings())
    ours = [_in_use(each) if each.name == RUN_DIR_VARIABLE else each for each in ours]
    found = [
        Effective(each.name, each.value, "./.tasks_app")
        if each.source == "environment" and each.name not in before
        else each
        for each in ours
    ]
    from tasks_app.broker.config.configuration import effective_celery_settings  # noqa: PLC0415  Celery
    from tasks_app.celery import app  # noqa: PLC0415

    theirs = effective_celery_settings(app)
    if json_:
        output.print_json({"tasks_app": _table(found), "celery": _table(theirs)})
        return
    every = [*found, *theirs]
    values = [output.cell(each.value) for each in every]
    longs = [not wide and len(value) > LONG for value in values]
    listing.echo(
        ("setting", "value", "source"),
        [
            [each.name, "" if long else value, each.source]
            for each, value, long in zip(every, values, longs, strict=True)
        ],
        [value if long else "" for value, long in zip(values, longs, strict=True)],
        remark="value",
        cut=("setting",),
        wide=wide,
    )


def _in_use(run_dir: Effective) -> Effective:
    """Show the folder itself, to tell the folders of several projects apart."""
    return Effective(run_dir.name, project_folder(), run_dir.source)


def _table(of: list[Effective]) -> dict[str, Any]:
    return {each.name: {"value": each.value, "source": each.source} for each in of}
