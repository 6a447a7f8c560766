"""Celery's settings: our defaults, then celeryconfig.py; checks of URLs and time limits."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from celery import Celery
from celery.app.defaults import DEFAULTS
from kombu.connection import Connection
from kombu.transport import resolve_transport

from tasks_app.broker.defaults import KNOWN, OURS, celery_defaults
from tasks_app.domain.config.setting_sources import Effective, masked
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.urls import PREFIX, check_broker_urls
from tasks_app.domain.durations import format_duration
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.tasks.error_text import quiet_logger

log = quiet_logger(__name__)
BY_ENVIRONMENT = {
    "broker_url": "CELERY_BROKER_URL",
    "broker_read_url": "CELERY_BROKER_READ_URL",
    "broker_write_url": "CELERY_BROKER_WRITE_URL",
    "result_backend": "CELERY_RESULT_BACKEND",
}
"""Celery reads these variables first, before any file."""


def celery_configuration(settings: Settings) -> dict[str, Any]:
    """Return the settings of our apps; raise ConfigurationError if Celery cannot use a URL."""
    theirs = read_celeryconfig()
    given = {name: theirs.get(name) for name in BY_ENVIRONMENT}
    given |= {name: os.environ.get(name) for name in BY_ENVIRONMENT.values()}
    check_broker_urls(given.items())
    broker = settings.broker_url.get_secret_value() if settings.broker_url else None
    chosen = theirs.get("broker_url", theirs.get("broker_write_url", broker))
    ours = celery_defaults(chosen, settings.scan_interval.total_seconds())
    merged = ours | theirs
    for key, value in ours.items():  # dicts are merged, or their schedule would drop our scan
        if isinstance(value, dict) and isinstance(theirs.get(key), dict):
            merged[key] = value | theirs[key]
    options = merged["broker_transport_options"]
    check_transports({f"{PREFIX}BROKER_URL": broker, **given}.items(), options)
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


def uppercase_names() -> list[str]:
    """Return the names in capitals of ``celeryconfig.py``, which Celery ignores."""
    return sorted(key for key, value in _names().items() if key.isupper() and not callable(value))


def _names() -> dict[str, Any]:
    name = os.environ.get("CELERY_CONFIG_MODULE", "celeryconfig")
    try:
        return vars(importlib.import_module(name))
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return {}


_REDIS = ("redis", "rediss", "sentinel")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TRANSPORT_OPTIONS = "broker_transport_options of celeryconfig.py"


def check_transports(urls: Iterable[tuple[str, Any]], options: Mapping[str, Any]) -> None:
    """Pass if Celery can use each ``(name, value)``; a value is a URL or a list.

    ``options`` are those of the transport.

    Raises:
        ConfigurationError: it cannot, or a library is not installed. The message has the setting's
            name, and of the URL only words that are not secret.
    """
    for name, value in urls:
        if name.lower().endswith("result_backend"):
            continue  # not a broker
        listed = value if isinstance(value, list | tuple) else [value]
        for url in ";".join(url for url in listed if isinstance(url, str)).split(";"):
            wrong = _what_is_wrong(url, options) if "://" in url else ""
            if wrong:
                raise ConfigurationError(f"The URL in {name} {wrong}")


def _what_is_wrong(url: str, options: Mapping[str, Any]) -> str:
    """Return a sentence's predicate and what to do; empty: the URL is fine."""
    scheme = url.partition("://")[0]
    kind = scheme.partition("+")[0]
    if kind not in KNOWN and not _has_transport(kind):
        return (
            f"names the transport {kind[:30]}, which Celery does not have here. "
            "Use redis://, rediss://, sentinel:// or amqp://."
        )
    parts = urlsplit(url)
    if _CONTROL.search(url) or _CONTROL.search(unquote(parts.path + parts.query)):
        return "has a control character, perhaps the end of a line. Remove it."
    options_given = dict(parse_qsl(parts.query))
    number = options_given.get("virtual_host", "") if scheme == "redis+socket" else parts.path
    if kind in _REDIS and not re.fullmatch(r"/?[0-9]*/?", unquote(number)):
        return "names a database of Redis by more than a number. End it with /0, for example."
    if kind == "sentinel" and not options.get("master_name"):
        return f'asks Sentinel for no master. Put "master_name" into {_TRANSPORT_OPTIONS}.'
    if options_given and scheme != "redis+socket" and not _accepts(url, kind, options_given):
        (first, *more) = options_given
        named = f" {first}" if re.fullmatch(r"[a-z_]{1,30}", first) and not more else ""
        return (
            f"has an option{named} behind its ? that Celery does not take, or not with its value. "
            f"Correct it, or put it into {_TRANSPORT_OPTIONS}."
        )
    return ""


def _has_transport(kind: str) -> bool:
    try:
        return resolve_transport(kind) is not None
    except Exception:  # some break in their own way where their library is missing
        return False


def _accepts(url: str, kind: str, options: Mapping[str, str]) -> bool:
    """Say whether kombu reads the options of the URL, and the driver takes those of TLS."""
    try:
        Connection(url)  # type: ignore[no-untyped-call]
    except (TypeError, ValueError, LookupError):
        return False
    of_tls = {key for key in options if key.startswith("ssl_")} if kind in _REDIS else set()
    if not of_tls:
        return True
    from redis import SSLConnection  # noqa: PLC0415  not every broker is Redis

    return of_tls <= inspect.signature(SSLConnection.__init__).parameters.keys()


class CeleryLimits(NamedTuple):
    """None: no limit."""

    soft: timedelta | None
    hard: timedelta | None

    def within(self, settings: Settings) -> CeleryLimits:
        """Return the shorter limit where both Celery and our settings have one."""
        given = settings.hard_timeout if "hard_timeout" in settings.model_fields_set else None
        return CeleryLimits(_shorter(self.soft, settings.timeout), _shorter(self.hard, given))


def _shorter(one: timedelta | None, other: timedelta | None) -> timedelta | None:
    return min((span for span in (one, other) if span), default=None)


NO_LIMITS = CeleryLimits(None, None)


def limits_of(soft: Any, hard: Any) -> CeleryLimits:
    return CeleryLimits(*(timedelta(seconds=float(s)) if s else None for s in (soft, hard)))


def move_limits_to_tasks(worker: Any, settings: Settings) -> CeleryLimits:
    """Take the limits from a worker that has no pool yet, and return them.

    Other Celery tasks, one message each, keep them. The returned hard limit leaves out
    ``TASKS_APP_HARD_TIMEOUT``, which only prefork has ever enforced.
    """
    soft, hard = worker.soft_time_limit, worker.time_limit
    worker.soft_time_limit = worker.time_limit = None
    for task in worker.app.tasks.values():
        if task.name not in OURS:
            task.soft_time_limit = task.soft_time_limit or soft
            task.time_limit = task.time_limit or hard
    given = limits_of(soft, hard)
    limits = given.within(settings)
    for name, span in (("TIMEOUT", limits.soft), ("HARD_TIMEOUT", limits.hard)):
        if span is not None:
            os.environ[f"{PREFIX}{name}"] = format_duration(span)
    if any(given):
        log.info("Celery's time limits bound each task, not a message: %s", describe_limits(limits))
    return CeleryLimits(limits.soft, given.hard)


def describe_limits(limits: CeleryLimits) -> str:
    named = (("timeout", limits.soft), ("hard_timeout", limits.hard))
    return ", ".join(f"{name} {format_duration(span)}" for name, span in named if span)
