"""The three Celery tasks: each checks its message and calls ``runtime/``. No exception escapes."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from celery import Celery, Task
from celery.backends.base import DisabledBackend

from tasks_app.broker.defaults import EXECUTE
from tasks_app.broker.defaults import MAINTAIN
from tasks_app.broker.defaults import SCAN
from tasks_app.broker.guard.body import are_ids
from tasks_app.broker.processes import ProcessState
from tasks_app.broker.worker_pool import heed_signals
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.error_text import brief

log = quiet_logger(__name__)


class Carrier(Task):
    """A message that carries tasks: no setting for Celery's tasks is meant for it.

    A time limit would hit up to 500 tasks, a rate limit hold them back, a late acknowledgement
    repeat them.
    """

    abstract = True
    Request = "tasks_app.broker.worker.quiet_log:MessageRequest"
    from_config = ()
    serializer = "json"
    acks_late = acks_on_failure = acks_on_timeout = acks_on_failure_or_timeout = False
    reject_on_worker_lost = retry_on_worker_lost = track_started = False
    ignore_result = True
    store_eager_result = store_errors_even_if_ignored = False

    @classmethod
    def annotate(cls) -> None:
        """Take nothing from ``task_annotations``."""

    @cached_property
    def backend(self) -> DisabledBackend:
        """No result store, whatever ``result_backend`` says: it may be away."""
        return DisabledBackend(app=self.app)


def register(app: Celery, process: ProcessState | None = None) -> None:
    """Register our tasks; ``process``: what the app's worker shares with them.

    Celery's own retries stay off: the database is the authority. Celery sends no events of them,
    not even when a child was killed.
    """
    process = process or ProcessState(app)
    quiet = {"base": Carrier, "shared": False, "max_retries": 0, "send_events": False}

    @app.task(name=EXECUTE, bind=True, **quiet)
    def execute(self: Task, wake: Any = None, ids: Any = None, *rest: Any, **more: Any) -> None:
        """Execute one message. A forged one can at most start tasks that are due anyway."""
        if rest or more or not are_ids(wake, ids):
            log.error("a message on our queue has no valid body and is dropped")
            return
        try:
            child = process.child()
            heed_signals(child)
            queue = (self.request.delivery_info or {}).get("routing_key")
            child.execute(ids, wake=wake is not None, queue=queue)
        except Exception as error:
            log.error("a message ended early; the scan comes back: %s", brief(error))  # noqa: TRY400  no traceback: it may show payloads

    @app.task(name=SCAN, **quiet)
    def scan() -> None:
        """Scan and rescue, where no PoolScheduler does it inline and nobody else leads."""
        leader = process.scheduled_leader()
        _quietly(SCAN, lambda: leader.hold() and leader.scan())

    @app.task(name=MAINTAIN, **quiet)
    def maintain() -> None:
        """Maintain, unless somebody just did."""
        _quietly(MAINTAIN, lambda: process.scheduled_leader().maintain())


def _quietly(name: str, duty: Any) -> None:
    try:
        duty()
    except Exception as error:
        log.warning("%s failed, the next tick tries again: %s", name, type(error).__name__)
