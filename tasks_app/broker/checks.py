"""Is the broker fit for us, and is Celery set up as we need it?"""

from __future__ import annotations

import fnmatch
from typing import Any
from urllib.parse import urlsplit

from celery import Celery
from celery.app.defaults import DEFAULTS

from tasks_app.broker.config import read_celeryconfig
from tasks_app.broker.config import written_in_capitals
from tasks_app.broker.defaults import PASSED_BY
from tasks_app.broker.defaults import celery_defaults
from tasks_app.broker.config.time_limits import limits_of, said
from tasks_app.broker.outage import why_away
from tasks_app.broker.publish.blocked import BlockedError, try_to_send
from tasks_app.broker.publish.publisher import PATIENCE_S
from tasks_app.domain.config.addresses import is_local
from tasks_app.domain.finding import Finding, away, fail, ok, warn
from tasks_app.domain.spelling import nearest

LEAVE_ALONE = {
    "worker_prefetch_multiplier": "messages would wait in one worker while another one is free",
    "accept_content": "anything but JSON lets anybody who writes to the broker run code",
    "beat_scheduler": "only ours scans beside busy workers, and needs no file",
    "task_always_eager": "beat would run the tasks itself",
    "worker_consumer": "only ours watches the children while the broker is away",
}
OUR_CONSUMERS = tuple(f"tasks_app.broker.consumer:{name}Consumer" for name in ("Patient", "Rabbit"))
_OLD_NAMES = ("CELERY_", "CELERYD_", "CELERYBEAT_", "BROKER_")
_UNTRIED_POOLS = ("gevent", "eventlet")


def examine_broker(app: Celery) -> list[Finding]:
    """Ask the broker who it is, and whether it may drop messages."""
    connection = app.connection_for_write()
    try:
        connection.ensure_connection(max_retries=1, timeout=PATIENCE_S)
        if connection.transport.driver_type == "redis":
            return _redis(connection.default_channel.client.info())
        about = getattr(connection.connection, "server_properties", None) or {}
        name = f"{about.get('product', connection.transport.driver_name)}"
        try_to_send(connection, PATIENCE_S)
        return [ok("broker", f"{name} {about.get('version', '')}".strip() + " answers")]
    except BlockedError:
        advice = "See its alarms: rabbitmqctl status. Tasks wait in the database meanwhile."
        return [fail("broker", "refuses messages (connection.blocked: memory or disk)", advice)]
    except Exception as error:
        cause = why_away(error)
        return [away("broker", cause.fact, cause.advice)]
    finally:
        connection.collect()  # no goodbye: a blocked connection gets no answer


def examine_celery(app: Celery) -> list[Finding]:
    """Look for settings that Celery does not know, and for harmful ones."""
    strange = [name for name in sorted(read_celeryconfig()) if name not in DEFAULTS]
    strange += [name for name in written_in_capitals() if name.startswith(_OLD_NAMES)]
    findings = [_unknown(name) for name in strange]
    ours = celery_defaults(app.conf.broker_url, 1.0)
    for name, why in LEAVE_ALONE.items():
        if app.conf[name] != ours.get(name, DEFAULTS[name]) and app.conf[name] not in OUR_CONSUMERS:
            advice = f"Take it out of celeryconfig.py: {why}."
            findings.append(warn("celery", f"{name} is set to something else", advice))
    if app.conf.worker_pool in _UNTRIED_POOLS:
        advice = "Take prefork: limits are not enforced here, and nothing was tried."
        findings.append(fail("celery", f"worker_pool is {app.conf.worker_pool}", advice))
    return [*(findings or [ok("celery", "no setting is unknown, none does harm")]), *_bounds(app)]


def _bounds(app: Celery) -> list[Finding]:
    """Name the settings for Celery's tasks: time limits bound ours, too; others do not."""
    conf = app.conf
    findings = []
    limits = limits_of(conf.task_soft_time_limit, conf.task_time_limit)
    if any(limits):
        findings.append(ok("celery", f"its time limits bound each task: {said(limits)}"))
    ours = celery_defaults(conf.broker_url, 1.0)
    idle = [
        name
        for name in sorted(DEFAULTS)
        if any(fnmatch.fnmatch(name, pattern) for pattern in PASSED_BY)
        and conf.get(name) != ours.get(name, DEFAULTS[name])
    ]
    if idle:
        findings.append(
            ok("celery", f"{', '.join(idle)}: for Celery tasks only, not for tasks of the pool")
        )
    return findings


def examine_access(app: Celery) -> list[Finding]:
    """Look for a broker that anybody in the network may write to."""
    given = (app.conf.broker_read_url, app.conf.broker_write_url, app.conf.broker_url)
    urls = [url for each in given for url in (each if isinstance(each, list | tuple) else [each])]
    if not any(is_open(str(url)) for url in urls if url):
        return []
    advice = "Give it one: anybody who writes to the broker can stop workers."
    return [warn("broker", "is elsewhere, and its URL has no password", advice)]


def is_open(url: str) -> bool:
    """Say whether a URL names a server on another machine, without a password.

    A password elsewhere, in an option of the transport for instance, is not seen.
    """
    for one in url.split(";"):
        parts = urlsplit(one)
        known = parts.password or "password" in parts.query or "://" not in one
        if parts.hostname and not known and not is_local(parts.hostname):
            return True
    return False


def _redis(info: dict[str, Any]) -> list[Finding]:
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    version = info.get("valkey_version") or info.get("redis_version")
    answers = ok("broker", f"{name} {version} answers")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return [answers]
    advice = "Set maxmemory-policy noeviction: then a full broker refuses, and the scan waits."
    return [answers, warn("broker", f"drops messages when it is full ({policy})", advice)]


def _unknown(name: str) -> Finding:
    near = nearest(name.lower().removeprefix("celery_"), DEFAULTS)
    advice = f"Write {near}." if near else "Take it out, or give it a leading underscore."
    return warn("celery", f"celeryconfig sets {name}, which Celery ignores", advice)
