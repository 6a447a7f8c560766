"""OutboxTask: a Celery task whose calls go into the open outbox."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from celery import Task

from tasks_app.broker.celery_tasks.options import options_of
from tasks_app.broker.outbox import current_sink
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.creation import NewTask
from tasks_app.domain.errors import OutboxError
from tasks_app.domain.safe_logging import quiet_logger

log = quiet_logger(__name__)


class OutboxTask(Task):
    """``@app.task(base=OutboxTask)``: its calls go into the open outbox.

    Without one, ``TASKS_APP_OUTSIDE_OUTBOX`` decides: publish as Celery does, with or without a
    warning, or refuse.
    """

    abstract = True

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> Any:
        """Create a row in the open outbox, or do what Celery does."""
        given = {**options, "task_id": task_id, "link": link, "link_error": link_error}
        sink = current_sink()
        again = bool(options.get("retries"))  # from self.retry in a plain worker
        if sink is not None and not again and not self.app.conf.task_always_eager:
            if not sink.open:
                raise OutboxError(f"{self.name} was called after its outbox was closed.")
            return sink.put(NewTask(self, None, options_of(self.app, given), args, kwargs))
        if not again and not self.app.conf.task_always_eager:
            _outside(self)
        return super().apply_async(args, kwargs, producer=producer, shadow=shadow, **given)


def _outside(task: Task) -> None:
    # The queues of an app of ours would refuse the message.
    if _rule() == "refuse" or getattr(task.app, "serves_pool", False):
        raise OutboxError(
            f"{task.name} was called without an outbox. "
            "Call it within: with outbox(session), or use create_task."
        )
    if _rule() == "warn":
        log.warning(
            "%s was called without an outbox and goes to the broker, committed or not", task.name
        )


@functools.cache
def _rule() -> str:
    return load_settings().outside_outbox
