"""The options of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from typing import Literal

    from tasks_app.domain.durations import Duration
    from tasks_app.domain.tasks.retry_policy import RetryPolicy


class TaskOptions(TypedDict, total=False):
    """Options of ``create_task``. None means the default, as if it were left out."""

    queue: str | None
    """Default: the handler's queue where the handler is known, else ``default``."""
    priority: int | None
    """0 is first, 9 last; default 5."""
    run_at: datetime | None
    """Not before this aware instant. Excludes ``delay``."""
    delay: Duration | None
    """Not before this long after the insert, by the database's clock."""
    biz_key: str | None
    """The business object that the task is about, as ``order:42``; searchable, not unique."""
    unique_key: str | None
    """At most one pending or running task of this name has it, unless ``unique_scope`` differs."""
    unique_scope: str | None
    """For how long the key is taken: ``queued``, ``queued_or_running``, ``until_terminal`` (the
    default; the same), ``for_period 1h`` (or another time), ``forever``."""
    on_conflict: Literal["return_existing", "replace_payload", "reschedule", "raise"] | None
    """When the key is taken: ``return_existing`` (default), ``replace_payload``, ``reschedule``,
    ``raise``."""
    max_wait: Duration | None
    """With ``reschedule``: so long after its creation the task is due at the latest, however often
    it is rescheduled."""
    fair_key: str | None
    """In a fair queue: whose share it belongs to, for instance a tenant's."""
    order_key: str | None
    """Tasks of one key run one at a time; among those that are due, the lowest id first."""
    order_policy: Literal["blocks", "skips"] | None
    """While a task of the key waits for a retry, or has failed for good: ``blocks`` (default; the
    tasks behind it wait) or ``skips`` (they run)."""
    strict_order: bool | None
    """True: producers of the key take turns, each until its commit, so that ids rise in the order
    of the commits."""
    limit_key: str | Sequence[str] | None
    """Counts against the limit that an operator has set for this key, if there is one. Of several
    keys, as ``["bank:acme", "tenant:7"]``: it runs only while there is room for it under each."""
    max_attempts: int | None
    """This many charged failures lead to the error pool; default: the policy's."""
    retry: str | Sequence[Duration] | RetryPolicy | None
    """The retry policy; default: the handler's."""
    wait_first: bool | None
    """True: the first run, too, waits level 1 of the policy."""
    timeout: Duration | None
    """After this long an exception is raised inside the handler."""
    hard_timeout: Duration | None
    """After this long the child that runs the task is killed."""
    expires_at: datetime | None
    """A task that becomes due later than this does not run: it is EXPIRED."""
    enabled: bool | None
    """False: the task is SKIPPED when it becomes due."""
    headers: Mapping[str, Any] | None
    """A small JSON object that travels with the task, for instance for tracing."""


class OrderPolicy(StrEnum):
    """What a task that waits for a retry, or failed for good, does to the tasks behind it."""

    BLOCKS = "blocks"
    """They wait until it is over; if it failed, until it is requeued or unblocked."""
    SKIPS = "skips"
    """They run."""
