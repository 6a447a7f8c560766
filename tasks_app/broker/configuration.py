"""What Celery is told: our defaults, then ``celeryconfig.py`` of the working folder."""

from __future__ import annotations

from typing import Any

from tasks_app.broker.celeryconfig import read_celeryconfig
from tasks_app.broker.defaults import celery_defaults
from tasks_app.domain.settings import Settings


def configuration(settings: Settings) -> dict[str, Any]:
    """Return the settings of every app of ours, for workers as for producers."""
    theirs = read_celeryconfig()
    broker = settings.broker_url.get_secret_value() if settings.broker_url else None
    broker = theirs.get("broker_url", theirs.get("broker_write_url", broker))
    return _merged(celery_defaults(broker, settings.scan_interval.total_seconds()), theirs)


def _merged(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Let their settings win; tables are merged, or a schedule of theirs would end our scan."""
    merged = ours | theirs
    for key, value in ours.items():
        if isinstance(value, dict) and isinstance(theirs.get(key), dict):
            merged[key] = value | theirs[key]
    return merged
