"""What Celery is told: our defaults, then ``celeryconfig.py`` of the working folder."""

from __future__ import annotations

import os
from typing import Any

from tasks_app.broker.celeryconfig import read_celeryconfig
from tasks_app.broker.defaults import celery_defaults
from tasks_app.domain.settings import Settings
from tasks_app.domain.urls import check_broker_urls

BY_ENVIRONMENT = {
    "broker_url": "CELERY_BROKER_URL",
    "broker_read_url": "CELERY_BROKER_READ_URL",
    "broker_write_url": "CELERY_BROKER_WRITE_URL",
    "result_backend": "CELERY_RESULT_BACKEND",
}
"""Celery looks into these first, whatever any file says."""


def configuration(settings: Settings) -> dict[str, Any]:
    """Return the settings of every app of ours, for workers as for producers.

    Raises:
        ConfigurationError: a URL cannot be read.
    """
    theirs = read_celeryconfig()
    check_broker_urls((name, theirs.get(name)) for name in BY_ENVIRONMENT)
    check_broker_urls((name, os.environ.get(name)) for name in BY_ENVIRONMENT.values())
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
