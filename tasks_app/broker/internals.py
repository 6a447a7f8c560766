"""Private parts of Celery, kombu, redis and billiard that we use; each is checked before use.

Where one has changed, Celery's own way is taken. Only the guard of our queues has no such way:
without it no worker starts.
"""

from __future__ import annotations

from typing import Any

from billiard import pool as billiard_pool
from celery import _state
from celery.app import app_or_default

from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.finding import (
    Finding,
    PrivateApi,
    Used,
    fail,
    startup_notices,
    version_findings,
)

_REDIS = "kombu.transport.redis"
_CHANNEL = f"{_REDIS}:Channel"
_ASYN_POOL = "celery.concurrency.asynpool:AsynPool"
_CONSUMER = "celery.worker.consumer:Consumer"

# ``publisher``: a hint as one command on a socket of its own.
KEPT_SOCKET = PrivateApi(
    Used("redis.connection:AbstractConnection.__init__", names=("_sock",)),
    Used("redis.connection:AbstractConnection.send_command", ("self", "args")),
    Used("redis.connection:AbstractConnection.read_response", ("self",)),
    Used("redis.connection:ConnectionPool.get_connection", ("self",)),
    Used("redis.connection:ConnectionPool.release", ("self", "connection")),
    Used(f"{_CHANNEL}._q_for_pri", ("self", "queue", "pri")),
    Used(f"{_REDIS}:GlobalKeyPrefixMixin._prefix_args", ("self", "args")),
    without="hints go out through kombu, which takes longer",
)
# ``sending``: one client for all messages, or one pipeline.
ONE_CLIENT = PrivateApi(
    Used(f"{_CHANNEL}.conn_or_acquire", ("self", "client")),
    Used(f"{_CHANNEL}._put", names=("conn_or_acquire",)),
    without="each message to Redis takes a round trip of its own",
)
CURRENT_APP = PrivateApi(
    Used("celery._state:_tls.current_app"),
    Used("celery._state:_set_current_app", ("app",)),
    without="where no app was current, Celery's default one is",
)
# ``translation``: arguments of a Celery task with ``pydantic=True``.
PYDANTIC = PrivateApi(
    Used("celery:Task._dump_pydantic_arguments"),
    without="models as arguments of Celery tasks are refused",
    since=(5, 7),
)
# ``app``: Celery's own setting for the kind of our queues.
QUEUE_TYPE = PrivateApi(
    Used("celery.app.amqp:Queues.new_missing", names=("create_missing_queue_type",)),
    without="a class of ours makes the quorum queues of RabbitMQ",
    since=(5, 6),
)
OF_ALL = (KEPT_SOCKET, ONE_CLIENT, CURRENT_APP, PYDANTIC, QUEUE_TYPE)

# ``worker_pool``: a message for an idle child goes out at once, and none is forgotten.
PROMPT_POOL = PrivateApi(
    Used(f"{_ASYN_POOL}.__init__", names=("_all_inqueues", "_active_writes", "_busy_workers")),
    Used(f"{_ASYN_POOL}._create_write_handlers", ("self", "hub")),
    Used(f"{_ASYN_POOL}._create_write_handlers", names=("_quick_put", "consolidate_callback")),
    Used(f"{_ASYN_POOL}.flush", ("self",), ("_cache", "_accepted", "_state")),
    Used("billiard.pool:CLOSE"),
    Used("billiard.pool:ApplyResult._write_to"),
    Used(f"{_ASYN_POOL}._event_process_exit", ("self", "hub", "proc"), ("maintain_pool",)),
    Used("celery.concurrency.prefork:TaskPool.on_start", names=("Pool",)),
    Used("billiard.pool:Pool.__init__", names=("_pool",)),
    without="a message waits for the next round of the worker's loop, and a stop may take 30 s",
)
# ``consumer``: what isn't a message is dropped.
SAFE_LISTS = PrivateApi(
    Used(f"{_CHANNEL}._brpop_read", ("self",)),
    Used(f"{_CHANNEL}.__init__", names=("_brpop_read",)),
    Used(f"{_REDIS}:Transport.Channel"),
    Used(f"{_REDIS}:SentinelTransport.Channel"),
    without="half a JSON text written into a list of Redis ends a worker",
)
# ``consumer`` overrides these.
PATIENT_CONSUMER = PrivateApi(
    Used(f"{_CONSUMER}.ensure_connected", ("self", "conn"), ("ensure_connection",)),
    Used(f"{_CONSUMER}.create_task_handler", ("self",)),
    Used(f"{_CONSUMER}.on_connection_error_before_connected", ("self", "exc")),
    Used(f"{_CONSUMER}.on_connection_error_after_connected", ("self", "exc")),
    Used(f"{_CONSUMER}.on_ready", ("self",)),
    Used(f"{_CONSUMER}.on_close", ("self",)),
    *(Used(f"{_CONSUMER}.on_{name}") for name in ("decode_error", "invalid_task")),
    *(Used(f"{_CONSUMER}.on_unknown_{name}") for name in ("message", "task")),
    without="no hard limit holds while the broker is away, and an odd message ends a worker",
)
# ``worker_pool`` overrides it.
COLD_SHUTDOWN = PrivateApi(
    Used("celery.apps.worker:Worker.wait_for_soft_shutdown", ("self",)),
    without="a worker's cold shutdown kills what runs, and its tasks lose an attempt",
)
# ``control_queue_durable`` in ``defaults``: RabbitMQ 4 deprecates transient queues.
DURABLE_CONTROL = PrivateApi(
    Used("kombu.pidbox:Mailbox.__init__", names=("queue_durable",)),
    without="on RabbitMQ a worker's queue of remote commands is a transient one",
    since=(5, 6),
)
OF_WORKERS = (PROMPT_POOL, SAFE_LISTS, PATIENT_CONSUMER, COLD_SHUTDOWN, DURABLE_CONTROL)

# ``consumer.guard_queues``, without which no worker may run.
_GUARDED_QUEUES = PrivateApi(
    Used("celery:Task.start_strategy", ("self", "app", "consumer")),
    Used(f"{_CONSUMER}.update_strategies", names=("start_strategy",)),
    Used("celery.worker.strategy:default", ("task", "app", "consumer")),
    without="everybody who can write to the broker could start any Celery task",
)


def examine() -> list[Finding]:
    found = version_findings("celery", (*OF_ALL, *OF_WORKERS))
    if _GUARDED_QUEUES.works:
        return found
    return [fail("celery", _GUARDED_QUEUES.fact, _GUARDED_QUEUES.advice), *found]


def notices_at_start(*, in_worker: bool = False) -> list[str]:
    """Return what a worker, or any other process, logs when it starts."""
    return startup_notices(OF_WORKERS if in_worker else OF_ALL)


def check_guard() -> None:
    """Pass if a worker can refuse foreign messages on our queues; else raise ConfigurationError."""
    if not _GUARDED_QUEUES.works:
        raise ConfigurationError(f"{_GUARDED_QUEUES.fact}. {_GUARDED_QUEUES.advice}")


def current_app() -> Any:
    """Return this thread's app; None: it has none, and this Celery shows that."""
    return _state._tls.current_app if CURRENT_APP.works else app_or_default()  # noqa: SLF001


def make_current(app: Any) -> None:
    if CURRENT_APP.works:
        _state._set_current_app(app)  # noqa: SLF001
    else:
        app.set_current()


def is_closing(pool: Any) -> bool:
    """Say whether a pool takes no more jobs, and waits for those that it has."""
    return bool(pool._state == billiard_pool.CLOSE)  # noqa: SLF001


def was_written(job: Any) -> bool:
    """Say whether a job was sent to a child, which may not have accepted it yet."""
    return job._write_to is not None  # noqa: SLF001
