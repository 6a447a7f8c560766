"""What a run from the pool records instead of sending a message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from celery import Task
from celery.canvas import Signature

from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.runtime.handlers.context import TaskContext


@dataclass(slots=True)
class PoolRun:
    """``self.request.pool_run``, while a task runs from the pool."""

    context: TaskContext
    retries: list[Signature] = field(default_factory=list)
    """What ``self.retry`` would have sent."""


def keep_here(task: Task) -> None:
    """Keep runs of this task from the pool from sending messages; other runs stay unchanged."""
    if getattr(task, "_kept_here", False):
        return
    signature_from_request, replace = task.signature_from_request, task.replace

    def kept_signature(
        request: Any = None, args: Any = None, kwargs: Any = None, queue: Any = None, **more: Any
    ) -> Signature:
        """Make the signature that ``self.retry`` sends; a run from the pool only records it."""
        signature = signature_from_request(request, args, kwargs, queue, **more)
        run = pool_run_of(task)
        if run is not None:
            unknown = [name for name in more if name not in ("countdown", "eta", "retries")]
            if queue or unknown:
                raise Fail(
                    f"self.retry({(unknown or ['queue'])[0]}=…) cannot be carried out by the pool. "
                    "It knows countdown, eta, max_retries, args and kwargs."
                )
            signature.apply_async = lambda *_, **__: run.retries.append(signature)
        return signature

    def kept_replace(signature: Signature) -> Any:
        """Refuse in the pool: the new task would have this one's id, and leave the pool."""
        if pool_run_of(task) is None:
            return replace(signature)
        raise Fail("self.replace does not exist in the pool. Create the other task, and return.")

    task.signature_from_request, task.replace = kept_signature, kept_replace
    task._kept_here = True  # noqa: SLF001  our own mark


def pool_run_of(task: Task) -> PoolRun | None:
    """Return the task's current run from the pool; None: it has none."""
    return getattr(task.request, "pool_run", None)
