"""What of a broker's URL Celery cannot use: said in one sentence, before anything connects."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from kombu.connection import Connection
from kombu.transport import resolve_transport

from tasks_app.broker.config.transports import KNOWN
from tasks_app.domain.errors import ConfigurationError

_REDIS = ("redis", "rediss", "sentinel")
_NUMBER = re.compile(r"/?[0-9]*/?")
_OPTION = re.compile(r"[a-z_]{1,30}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TRANSPORT_OPTIONS = "broker_transport_options of celeryconfig.py"


def check_transports(urls: Iterable[tuple[str, Any]], options: Mapping[str, Any]) -> None:
    """Pass if Celery can use each ``(name, value)``; a value is a URL or a list.

    ``options`` are those of the transport.

    Raises:
        ConfigurationError: it cannot, or what it needs is not installed. It has the setting's name,
            and nothing of the URL but words that are no secret.
    """
    for name, value in urls:
        if name.lower().endswith("result_backend"):
            continue  # no broker
        listed = value if isinstance(value, list | tuple) else [value]
        for url in ";".join(url for url in listed if isinstance(url, str)).split(";"):
            wrong = _what_is_wrong(url, options) if "://" in url else ""
            if wrong:
                raise ConfigurationError(f"The URL in {name} {wrong}")


def _what_is_wrong(url: str, options: Mapping[str, Any]) -> str:
    """Return a sentence's predicate and what to do; empty: nothing is."""
    scheme = url.partition("://")[0]
    kind = scheme.partition("+")[0]
    if kind not in KNOWN and not _has(kind):
        return (
            f"names the transport {kind[:30]}, which Celery does not have here. "
            "Use redis://, rediss://, sentinel:// or amqp://."
        )
    parts = urlsplit(url)
    if _CONTROL.search(url) or _CONTROL.search(unquote(parts.path + parts.query)):
        return "has a control character, perhaps the end of a line. Take it out."
    asked = dict(parse_qsl(parts.query))
    number = asked.get("virtual_host", "") if scheme == "redis+socket" else parts.path
    if kind in _REDIS and not _NUMBER.fullmatch(unquote(number)):
        return "names a database of Redis by more than a number. End it with /0, for example."
    if kind == "sentinel" and not options.get("master_name"):
        return f'asks Sentinel for no master. Put "master_name" into {_TRANSPORT_OPTIONS}.'
    if asked and scheme != "redis+socket" and not _is_readable(url, kind, asked):
        (first, *more) = asked
        named = f" {first}" if _OPTION.fullmatch(first) and not more else ""
        return (
            f"has an option{named} behind its ? that Celery does not take, or not with its value. "
            f"Correct it, or put it into {_TRANSPORT_OPTIONS}."
        )
    return ""


def _is_readable(url: str, kind: str, asked: Mapping[str, str]) -> bool:
    """Whether kombu reads the options of the URL, and the driver takes those of TLS."""
    try:
        Connection(url)  # type: ignore[no-untyped-call]
    except (TypeError, ValueError, LookupError):
        return False
    of_tls = {key for key in asked if key.startswith("ssl_")} if kind in _REDIS else set()
    if not of_tls:
        return True
    from redis import SSLConnection  # noqa: PLC0415  not every broker is Redis

    return of_tls <= inspect.signature(SSLConnection.__init__).parameters.keys()


def _has(kind: str) -> bool:
    try:
        return resolve_transport(kind) is not None
    except Exception:  # some break in their own way where their library is missing
        return False
