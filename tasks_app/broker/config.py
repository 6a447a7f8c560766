"""What Celery is told: our defaults, then ``celeryconfig.py``, where Celery users keep settings."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

from celery import Celery
from celery.app.defaults import DEFAULTS

from tasks_app.broker.defaults import celery_defaults
from tasks_app.broker.config.transport_checks import check_transports
from tasks_app.domain.config.schema_name import PREFIX
from tasks_app.domain.config.setting_sources import Effective, masked
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.urls import check_broker_urls

BY_ENVIRONMENT = {
    "broker_url": "CELERY_BROKER_URL",
    "broker_read_url": "CELERY_BROKER_READ_URL",
    "broker_write_url": "CELERY_BROKER_WRITE_URL",
    "result_backend": "CELERY_RESULT_BACKEND",
}
"""Celery reads these variables first, before any file."""


def configuration(settings: Settings) -> dict[str, Any]:
    """Return the settings of every app of ours, in workers and in producers.

    Raises:
        ConfigurationError: a URL cannot be read, or Celery cannot use it.
    """
    theirs = read_celeryconfig()
    given = {name: theirs.get(name) for name in BY_ENVIRONMENT}
    given |= {name: os.environ.get(name) for name in BY_ENVIRONMENT.values()}
    check_broker_urls(given.items())
    broker = settings.broker_url.get_secret_value() if settings.broker_url else None
    chosen = theirs.get("broker_url", theirs.get("broker_write_url", broker))
    merged = _merged(celery_defaults(chosen, settings.scan_interval.total_seconds()), theirs)
    options = merged["broker_transport_options"]
    check_transports({f"{PREFIX}BROKER_URL": broker, **given}.items(), options)
    return merged


def _merged(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Let their settings win; dicts are merged, or a schedule of theirs would end our scan."""
    merged = ours | theirs
    for key, value in ours.items():
        if isinstance(value, dict) and isinstance(theirs.get(key), dict):
            merged[key] = value | theirs[key]
    return merged


def effective_celery_settings(app: Celery) -> list[Effective]:
    """Return Celery's settings that differ from its defaults, with sources, secrets masked."""
    theirs, ours = read_celeryconfig(), celery_defaults(app.conf.broker_url, 1.0)
    found = []
    for name in sorted(DEFAULTS):
        value = getattr(app.conf, name, None) if name in BY_ENVIRONMENT else app.conf.get(name)
        derived = (
            name.startswith("broker_") and name != "broker_url" and value == app.conf.broker_url
        )
        if value == DEFAULTS[name] or derived:
            continue
        both = isinstance(ours.get(name), dict) and name in theirs
        if os.environ.get(BY_ENVIRONMENT.get(name, "")):
            source = "environment"
        elif both:
            source = "celeryconfig, tasks_app"
        elif name in theirs:
            source = "celeryconfig"
        elif name == "broker_url":
            source = "TASKS_APP_BROKER_URL"
        else:
            source = "tasks_app" if name in ours else "Celery"
        found.append(Effective(name, masked(value, name), source))
    return found


def read_celeryconfig() -> dict[str, Any]:
    """Return what ``celeryconfig.py`` sets, if it exists, without old names in capitals."""
    return {
        key: value
        for key, value in _names().items()
        if key[0].islower() and not isinstance(value, type(annotations) | ModuleType)
    }


def written_in_capitals() -> list[str]:
    """Return the names in capitals, which Celery ignores."""
    return sorted(key for key, value in _names().items() if key.isupper() and not callable(value))


def _names() -> dict[str, Any]:
    name = os.environ.get("CELERY_CONFIG_MODULE", "celeryconfig")
    try:
        return vars(importlib.import_module(name))
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return {}
