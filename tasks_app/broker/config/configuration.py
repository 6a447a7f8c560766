"""What Celery is told: our defaults, then ``celeryconfig.py`` of the working folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from kombu.transport import resolve_transport

from tasks_app.broker.config.celeryconfig import read_celeryconfig
from tasks_app.broker.config.defaults import celery_defaults
from tasks_app.broker.config.transports import KNOWN
from tasks_app.domain.config.schema_name import PREFIX
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.urls import check_broker_urls
from tasks_app.domain.errors import ConfigurationError

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
    given = {name: theirs.get(name) for name in BY_ENVIRONMENT}
    given |= {name: os.environ.get(name) for name in BY_ENVIRONMENT.values()}
    check_broker_urls(given.items())
    broker = settings.broker_url.get_secret_value() if settings.broker_url else None
    check_transports({f"{PREFIX}BROKER_URL": broker, **given}.items())
    broker = theirs.get("broker_url", theirs.get("broker_write_url", broker))
    return _merged(celery_defaults(broker, settings.scan_interval.total_seconds()), theirs)


def check_transports(urls: Iterable[tuple[str, Any]]) -> None:
    """Pass if Celery has a transport for each of ``(name, value)``, URLs of brokers or lists.

    Raises:
        ConfigurationError: there is none of that name here, or what it needs is not installed.
    """
    for name, value in urls:
        if name.lower().endswith("result_backend"):
            continue  # it is of no broker
        listed = value if isinstance(value, list | tuple) else [value]
        for url in ";".join(url for url in listed if isinstance(url, str)).split(";"):
            kind = url.partition("://")[0].partition("+")[0]
            if "://" in url and kind not in KNOWN and not _has(kind):
                raise ConfigurationError(
                    f"The URL in {name} names the transport {kind[:30]}, which Celery does not "
                    "have here. Use redis://, rediss://, sentinel:// or amqp://."
                )


def _has(kind: str) -> bool:
    try:
        return resolve_transport(kind) is not None
    except Exception:  # some break in their own way where their library is missing
        return False


def _merged(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Let their settings win; tables are merged, or a schedule of theirs would end our scan."""
    merged = ours | theirs
    for key, value in ours.items():
        if isinstance(value, dict) and isinstance(theirs.get(key), dict):
            merged[key] = value | theirs[key]
    return merged
