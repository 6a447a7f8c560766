"""What doctor and a start check of Celery, its broker and its pool of processes."""

from __future__ import annotations

import fnmatch
import functools
import sys
import traceback
from collections.abc import Callable, Collection, Iterable
from typing import Any
from urllib.parse import urlsplit

from celery import Celery
from celery.app.defaults import DEFAULTS
from celery.concurrency import ALIASES, get_implementation
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.concurrency.thread import TaskPool as ThreadsPool
from sqlalchemy.exc import OperationalError, ProgrammingError

from tasks_app.broker import internals
from tasks_app.broker.config import (
    NO_LIMITS,
    CeleryLimits,
    describe_limits,
    limits_of,
    read_celeryconfig,
    uppercase_names,
)
from tasks_app.broker.defaults import PASSED_BY, celery_defaults
from tasks_app.broker.messages import load_pool_name
from tasks_app.broker.outage import BlockedError, try_to_send, why_away
from tasks_app.broker.publisher import PATIENCE_S
from tasks_app.domain.config.setting_sources import unknown_variables
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.unreachable import NOT_GRANTED, PERMISSION_ADVICE, why_unreachable
from tasks_app.domain.config.urls import is_local
from tasks_app.domain.errors import (
    EXIT_NO,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    ConfigurationError,
    PublishError,
    SchemaError,
    TasksError,
    nearest,
)
from tasks_app.domain.finding import Finding, away, fail, ok, warn
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.pool.operations import diagnostics
from tasks_app.pool.operations.grants import check_may_run
from tasks_app.pool.schema import check_schema
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import sqlstate
from tasks_app.runtime.flow_control.breakers import enter_breakers
from tasks_app.runtime.handler_db import driver_internals
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.schedules.declared import synchronise

log = quiet_logger(__name__)


class RefusedStart(SystemExit):
    """Ends a command with one sentence and an exit code of ours, not Python's 1."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(status)
        self.message = message
        sys.stderr.write(f"{message}\n")

    def __str__(self) -> str:
        return self.message


def _refused(error: TasksError) -> RefusedStart:
    status = EXIT_USAGE
    if isinstance(error, SchemaError | PublishError):
        status = EXIT_NO if isinstance(error, SchemaError) else EXIT_UNREACHABLE
    return RefusedStart(str(error), status)


def exit_on_error(receiver: Callable[..., None]) -> Callable[..., None]:
    """Let an error in a signal's receiver end the process; Celery would log it and go on."""

    @functools.wraps(receiver)
    def strict(*args: Any, **kwargs: Any) -> None:
        try:
            receiver(*args, **kwargs)
        except TasksError as error:
            raise _refused(error) from None
        except Exception as error:
            traceback.print_exc()
            raise SystemExit(1) from error

    return strict


def check_environment(app: Celery, settings: Settings) -> None:
    """Pass if a broker is configured and the database fits; else end with one sentence."""
    if not (app.conf.broker_url or app.conf.broker_read_url):
        try:
            _ = settings.broker  # Celery would try its own default, for ever
        except ConfigurationError as error:
            raise _refused(error) from None
    if not {"json", "application/json"} & set(app.conf.accept_content):
        raise RefusedStart(
            "accept_content lacks json, and our messages are JSON. "
            "Add json to it, or remove it from celeryconfig.py.",
            EXIT_USAGE,
        )
    for sentence in (*internals.notices_at_start(), *driver_internals.notices_at_start()):
        log.warning(sentence)
    for finding in unknown_variables():
        log.warning("%s. %s", finding.fact, finding.advice)
    for finding in examine_access(app):
        log.warning("The broker %s. %s", finding.fact, finding.advice)
    check_database(settings)


def check_database(settings: Settings) -> None:
    """Pass if the database answers and has our schema; else end the process with one sentence.

    A parent opens no other connection. It is closed before anything forks.
    """
    try:
        database = Database(settings.database, prepare=settings.prepare)
        try:
            with database.begin() as connection:
                notice = check_schema(connection)
                synchronise(connection, HANDLERS)
                enter_breakers(connection, HANDLERS)
                check_may_run(connection, logs=settings.transitions != "off")
                off = diagnostics.server(connection).forgetful
                load_pool_name(connection)
        finally:
            database.dispose()
    except (ConfigurationError, SchemaError) as error:
        raise _refused(error) from None
    except (OperationalError, ProgrammingError) as error:
        why = why_unreachable(str(error.orig))
        state = sqlstate(error)
        if not state and not why.away:
            raise RefusedStart(str(why), EXIT_USAGE) from None
        if state == NOT_GRANTED:
            raise RefusedStart(PERMISSION_ADVICE, EXIT_NO) from None
        if isinstance(error, ProgrammingError):
            raise  # only its traceback shows the cause
        failure = f"The database could not carry it out ({first_line(error)}). Try again."
        raise RefusedStart(failure if state else str(why), EXIT_UNREACHABLE) from None
    if notice:
        log.warning(notice)
    if off:
        log.warning(
            "The database has %s = off: a crash of the server loses committed tasks, or runs them "
            "twice. Set it on.",
            ", ".join(off),
        )


def examine_broker(app: Celery) -> list[Finding]:
    """Ask the broker for its name and version, and whether it may drop messages."""
    connection = app.connection_for_write()
    try:
        connection.ensure_connection(max_retries=1, timeout=PATIENCE_S)
        if connection.transport.driver_type == "redis":
            return _examine_redis(connection.default_channel.client.info())
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


def _examine_redis(info: dict[str, Any]) -> list[Finding]:
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    version = info.get("valkey_version") or info.get("redis_version")
    answers = ok("broker", f"{name} {version} answers")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return [answers]
    advice = "Set maxmemory-policy noeviction: then a full broker refuses, and the scan waits."
    return [answers, warn("broker", f"drops messages when it is full ({policy})", advice)]


def examine_access(app: Celery) -> list[Finding]:
    """Warn of a broker to which everybody on the network may write."""
    given = (app.conf.broker_read_url, app.conf.broker_write_url, app.conf.broker_url)
    urls = [url for each in given for url in (each if isinstance(each, list | tuple) else [each])]
    if not any(is_open(str(url)) for url in urls if url):
        return []
    advice = "Set one: everybody who can write to the broker can stop workers."
    return [warn("broker", "is on another machine, and its URL has no password", advice)]


def is_open(url: str) -> bool:
    """Say whether a URL names a server on another machine, without a password.

    It does not see a password in an option of the transport, for instance.
    """
    for one in url.split(";"):
        parts = urlsplit(one)
        known = parts.password or "password" in parts.query or "://" not in one
        if parts.hostname and not known and not is_local(parts.hostname):
            return True
    return False


LEAVE_ALONE = {
    "worker_prefetch_multiplier": "messages would wait in one worker while another one is free",
    "accept_content": "anything but JSON lets everybody who can write to the broker run code",
    "beat_scheduler": "only ours scans beside busy workers, and needs no file",
    "task_always_eager": "beat would run the tasks itself",
    "worker_consumer": "only ours watches the children while the broker is away",
}
_OUR_CONSUMERS = [f"tasks_app.broker.consumer:{name}Consumer" for name in ("Patient", "Rabbit")]
_OLD_NAMES = ("CELERY_", "CELERYD_", "CELERYBEAT_", "BROKER_")


def examine_celery(app: Celery) -> list[Finding]:
    """Warn of settings that Celery does not know, and of harmful ones."""
    conf, ours = app.conf, celery_defaults(app.conf.broker_url, 1.0)
    unknown = [name for name in sorted(read_celeryconfig()) if name not in DEFAULTS]
    unknown += [name for name in uppercase_names() if name.startswith(_OLD_NAMES)]
    findings = []
    for name in unknown:
        near = nearest(name.lower().removeprefix("celery_"), DEFAULTS)
        advice = f"Write {near}." if near else "Remove it, or give it a leading underscore."
        findings.append(warn("celery", f"celeryconfig sets {name}, which Celery ignores", advice))
    for name, why in LEAVE_ALONE.items():
        if conf[name] != ours.get(name, DEFAULTS[name]) and conf[name] not in _OUR_CONSUMERS:
            advice = f"Remove it from celeryconfig.py: {why}."
            findings.append(warn("celery", f"{name} is set to another value than ours", advice))
    if conf.worker_pool in ("gevent", "eventlet"):
        advice = "Use prefork: this pool enforces no limits, and is untested."
        findings.append(fail("celery", f"worker_pool is {conf.worker_pool}", advice))
    findings = findings or [ok("celery", "all settings are known and harmless")]
    limits = limits_of(conf.task_soft_time_limit, conf.task_time_limit)
    if any(limits):
        fact = f"its time limits bound each task: {describe_limits(limits)}"
        findings.append(ok("celery", fact))
    idle = [
        name
        for name in sorted(DEFAULTS)
        if any(fnmatch.fnmatch(name, pattern) for pattern in PASSED_BY)
        and conf.get(name) != ours.get(name, DEFAULTS[name])
    ]
    if idle:
        fact = f"{', '.join(idle)}: for Celery tasks only, not for tasks of the pool"
        findings.append(ok("celery", fact))
    return findings


def check_pool(pool: Any) -> None:
    """Pass if the pool, a class or Celery's name for it, lets other threads run.

    Raises:
        ConfigurationError: it runs green threads.
    """
    if get_implementation(pool).is_green:
        raise ConfigurationError(
            "The pools gevent and eventlet are refused: a handler that does not yield stops the "
            "housekeeper, which renews the leases, and its tasks would run twice. "
            "Use -P prefork, or -P threads for handlers that mostly wait."
        )


def check_limits(
    pool: Any,
    specs: Iterable[HandlerSpec],
    queues: Collection[str],
    default: CeleryLimits = NO_LIMITS,
) -> None:
    """Pass if the pool can enforce the limits of these queues' handlers, or the ``default`` ones.

    Raises:
        ConfigurationError: it cannot; names the handlers.
    """
    kind = get_implementation(pool)
    if issubclass(kind, PreforkPool):
        return
    here = [spec for spec in specs if spec.queue in queues]
    soft = [s for s in here if s.timeout or default.soft]
    timed = [f"{s.name} (timeout)" for s in soft if not _can_raise(kind, s)]
    hard = [f"{s.name} (hard_timeout)" for s in here if s.hard_timeout or default.hard]
    if not timed and not hard:
        return
    why = [
        *["nothing can be raised in a running thread"] * bool(timed),
        *["no process can be killed for one task alone"] * bool(hard),
    ]
    path = f"{kind.__module__}:{kind.__qualname__}"
    name = next((alias for alias, known in ALIASES.items() if known == path), path)
    raise ConfigurationError(
        f"The {name} pool cannot enforce the limits of {', '.join(timed + hard)}: "
        f"in it {' and '.join(why)}. Serve their queues with --pool=prefork, or declare no limit."
    )


def _can_raise(kind: type, spec: HandlerSpec) -> bool:
    """Solo runs in the main thread, where an alarm can raise; an event loop cancels in any."""
    anywhere = spec.is_async or spec.keeps_timeout
    return issubclass(kind, SoloPool) or (issubclass(kind, ThreadsPool) and anywhere)
