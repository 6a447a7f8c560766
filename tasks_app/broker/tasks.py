"""The three Celery tasks: each checks its message and calls ``runtime/``. Nothing comes out."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from celery import Celery, Task
from celery.backends.base import DisabledBackend

from tasks_app.broker.config.defaults import EXECUTE, MAINTAIN, SCAN
from tasks_app.broker.guard.body import are_ids
from tasks_app.broker.worker.processes import current_child, scheduled_leader
from tasks_app.broker.worker.shutdown import heed_signals
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.error_text import brief

log = quiet_logger(__name__)


class Carrier(Task):
    """What carries tasks and is none: nothing that is set for Celery's tasks is meant for it.

    A limit would hit up to 500 tasks, a rate hold them back, a late acknowledgement repeat them.
    """

    abstract = True
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
        """No store of results, whatever ``result_backend`` says: it may be away."""
        return DisabledBackend(app=self.app)


def register(app: Celery) -> None:
    """Register our tasks; Celery's own retries stay off, the database is the authority.

    Celery sends no events of them, not even when a child was killed.
    """
    quiet = {"base": Carrier, "shared": False, "max_retries": 0, "send_events": False}

    @app.task(name=EXECUTE, **quiet)
    def execute(dispatch_id: Any = None, ids: Any = None, *rest: Any, **more: Any) -> None:
        """Carry out one message. A forged one can at most start tasks that are due anyway."""
        if rest or more or not are_ids(dispatch_id, ids):
            log.error("a message on our queue has no valid body and is dropped")
            return
        try:
            child = current_child()
            heed_signals(child)
            child.execute(dispatch_id, ids)
        except Exception as error:
            log.error("message %s ended early; the scan comes back: %s", dispatch_id, brief(error))  # noqa: TRY400  no traceback: it may show payloads

    @app.task(name=SCAN, **quiet)
    def scan() -> None:
        """Scan and rescue, where no PoolScheduler does it inline and nobody else leads."""
        leader = scheduled_leader(app)
        _quietly(SCAN, lambda: leader.hold() and leader.scan())

    @app.task(name=MAINTAIN, **quiet)
    def maintain() -> None:
        """Maintain, if nobody did."""
        _quietly(MAINTAIN, lambda: scheduled_leader(app).maintain())


def _quietly(name: str, duty: Any) -> None:
    try:
        duty()
    except Exception as error:
        log.warning("%s failed, the next tick tries again: %s", name, type(error).__name__)
