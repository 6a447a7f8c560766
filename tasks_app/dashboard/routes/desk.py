"""What the routes of one application share."""

from __future__ import annotations

from dataclasses import dataclass

from tasks_app.dashboard.reader import PageReader
from tasks_app.domain.config.settings import Settings
from tasks_app.monitor.metrics.reader import MetricsReader
from tasks_app.runtime.db.database import Database


@dataclass(frozen=True, slots=True)
class Desk:
    """Reads go through ``reader``; ``database`` is for the verbs of operators."""

    settings: Settings
    reader: PageReader
    database: Database
    metrics: MetricsReader
    """Whoever scrapes shares its text."""
