"""docs/celery-settings.md as tests read it, and apps to try it on."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from celery import Celery
from celery.app.defaults import DEFAULTS
from celery.bin.beat import beat
from celery.bin.worker import worker
from celery.worker.control import Panel

import tasks_app.broker.control  # noqa: F401  it adds our commands
from tasks_app.broker.app import register
from tasks_app.broker.defaults import celery_defaults
from tests.docs.reading import section, text_of

PAGE = text_of("docs/celery-settings.md")
HONOURED, NEUTRALISED, REFUSED = "honoured", "neutralised", "refused"
EXISTING = {
    "Settings": set(DEFAULTS),
    "Options of `celery worker`": {str(option.name) for option in worker.params},
    "Options of `celery beat`": {str(option.name) for option in beat.params},
    "Remote commands": set(Panel.data),
}


class Row(NamedTuple):
    """One name of a table, which may be a pattern."""

    name: str
    here: str
    how: str


def rows(heading: str) -> list[Row]:
    """What the tables under a heading say, a row for each name."""
    found = re.findall(r"^\| (`.+?) \| (\w+) \| (.+) \|$", section(PAGE, heading), re.MULTILINE)
    return [
        Row(name, here, how)
        for names, here, how in found
        for name in re.findall(r"`([^`]+)`", names)
    ]


def named(heading: str, here: str) -> list[str]:
    """Which existing names a table calls so."""
    patterns = [row.name for row in rows(heading) if row.here == here]
    return sorted(
        name for name in EXISTING[heading] if any(fnmatch.fnmatch(name, p) for p in patterns)
    )


@contextmanager
def celery_apps() -> Iterator[Callable[..., Celery]]:
    """Make apps with our tasks and one of somebody else, and close them."""
    made: list[Celery] = []

    def make(**theirs: Any) -> Celery:
        app = Celery("feels", set_as_current=False)
        app.conf.update(celery_defaults("memory://", 1.0) | theirs)
        register(app)

        @app.task(name="celerys.own", shared=False)
        def own() -> None:
            """A Celery task of somebody else."""

        app.finalize()
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()
