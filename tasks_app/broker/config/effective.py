"""What holds of Celery's settings, where it is not Celery's own default."""

from __future__ import annotations

import os

from celery import Celery
from celery.app.defaults import DEFAULTS

from tasks_app.broker.config.celeryconfig import read_celeryconfig
from tasks_app.broker.config.configuration import BY_ENVIRONMENT
from tasks_app.broker.config.defaults import celery_defaults
from tasks_app.domain.config.setting_sources import Effective, masked


def effective_celery_settings(app: Celery) -> list[Effective]:
    """Return them with their sources, secrets masked."""
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
