"""``config``: which settings hold, and where they come from."""

from __future__ import annotations

import os
from typing import Any

import click

from tasks_app.cli import output
from tasks_app.cli.database import settings
from tasks_app.domain.config.setting_sources import Effective, effective_settings
from tasks_app.runtime.health_files import RUN_DIR_VARIABLE, project_folder


@click.command()
@output.as_json
def config(*, json_: bool) -> None:
    """Show the settings that hold here, ours and Celery's, without secrets."""
    before = dict(os.environ)
    ours = effective_settings(settings())
    ours = [_in_use(each) if each.name == RUN_DIR_VARIABLE else each for each in ours]
    found = [
        Effective(each.name, each.value, "./.tasks_app")
        if each.source == "environment" and each.name not in before
        else each
        for each in ours
    ]
    from tasks_app.broker.config.effective import effective_celery_settings  # noqa: PLC0415  Celery
    from tasks_app.celery import app  # noqa: PLC0415

    theirs = effective_celery_settings(app)
    if json_:
        output.print_json({"tasks_app": _table(found), "celery": _table(theirs)})
        return
    output.print_table(
        ("setting", "value", "source"),
        [(each.name, each.value, each.source) for each in [*found, *theirs]],
    )


def _in_use(run_dir: Effective) -> Effective:
    """Show the folder itself: who watches several projects wants to know which one is whose."""
    return Effective(run_dir.name, project_folder(), run_dir.source)


def _table(of: list[Effective]) -> dict[str, Any]:
    return {each.name: {"value": each.value, "source": each.source} for each in of}
