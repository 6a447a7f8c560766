"""What a producer may say of a task beside its name and payload."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal, TypeVar

    from tasks_app.domain.durations import Duration
    from tasks_app.domain.tasks.retry_policy import RetryPolicy

    P = TypeVar("P")

from collections.abc import Mapping, Sequence
from enum import StrEnum


class TaskOptions(TypedDict, total=False):
    """What ``create_task`` accepts beside a name and a payload; None is as good as left out."""

    queue: str | None
    """Default: the handler's queue where it is known, else ``default``."""
    priority: int | None
    """0 is first, 9 last; default 5."""
    run_at: datetime | None
    """Not before this aware instant. Excludes ``delay``."""
    delay: Duration | None
    """Not before this long after the insert, by the database's clock."""
    biz_key: str | None
    """The business object that the task is about, such as ``order:42``; searchable, not unique."""
    unique_key: str | None
    """At most one pending or running task of this name has it, or as ``unique_scope`` says."""
    unique_scope: str | None
    """``queued``, ``queued_or_running``, ``until_terminal`` (default; the same), ``for_period 1h``
    (or another time), ``forever``: for how long the key is taken."""
    on_conflict: Literal["return_existing", "replace_payload", "reschedule", "raise"] | None
    """When the key is taken: ``return_existing`` (default), ``replace_payload``, ``reschedule``,
    ``raise``."""
    fair_key: str | None
    """In a fair queue: whose share it is part of, such as a tenant's."""
    order_key: str | None
    """Tasks with one such key run one at a time; among those that are due the lowest id first."""
    order_policy: Literal["blocks", "skips"] | None
    """While a task of the key waits to be tried again, or has failed for good: ``blocks`` (default;
    those behind it wait) or ``skips`` (they go on)."""
    strict_order: bool | None
    """True: producers of the key take turns, each until its commit, so that ids rise in the order
    of the commits."""
    limit_key: str | None
    """Counts against the limit that an operator has set for such keys, if there is one."""
    max_attempts: int | None
    """How many charged failures lead to the error pool; default: the policy's."""
    retry: str | Sequence[Duration] | RetryPolicy | None
    """The retry policy; default: the handler's."""
    wait_first: bool | None
    """Already the first run waits level 1 of the policy."""
    timeout: Duration | None
    """Raised inside the handler after this long."""
    hard_timeout: Duration | None
    """The child that runs the task is killed after this long."""
    expires_at: datetime | None
    """A task that becomes due later than this is not run but EXPIRED."""
    enabled: bool | None
    """False: when due, the task is SKIPPED."""
    headers: Mapping[str, Any] | None
    """Small JSON object that travels with the task, for tracing and the like."""


class OrderPolicy(StrEnum):
    """What a task does to those behind it that waits to be tried again, or has failed for good."""

    BLOCKS = "blocks"
    """They wait until it is over, and one that failed until it is requeued or let go."""
    SKIPS = "skips"
