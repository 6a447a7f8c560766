"""Everything that tasks_app raises, and suggestions for misspelled words in its messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable

# Exit codes: the answer is no; wrong usage or configuration; database or broker unreachable.
EXIT_NO, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3


class TasksError(Exception):
    """The root of all errors of tasks_app."""


class InvalidTaskError(TasksError, ValueError):
    """A task was refused before anything was written.

    ``path`` says where the bad value is, such as ``payload.lines[3].price``.
    """

    def __init__(self, path: str, problem: str, allowed: str) -> None:
        super().__init__(f"{path} {problem}. Allowed: {allowed}.")
        self.path = path
        self._problem, self._allowed = problem, allowed

    def at(self, outer: str) -> InvalidTaskError:
        """Return the same error with ``outer`` in front of its path."""
        return type(self)(f"{outer}.{self.path}", self._problem, self._allowed)


class InvalidConnectionError(TasksError, TypeError):
    """The function does not take this kind of session, connection or engine."""


class InvalidScheduleError(InvalidTaskError):
    """A schedule was refused before anything was written."""


class InvalidLockError(InvalidTaskError):
    """A group of locks was refused before any lock was requested."""


class InvalidSelectionError(TasksError, ValueError):
    """An operator's request makes no sense; nothing was written."""


class PlanError(TasksError, ValueError):
    """A batch cannot be split in the requested way; nothing was started."""


class IllegalTransitionError(TasksError):
    """An event is not allowed in the task's state."""

    def __init__(self, state: str, event: str) -> None:
        super().__init__(f"{event} is not admitted in state {state}. See docs/lifecycle.md.")


class LeaseLostError(TasksError):
    """The run no longer owns its task; its writes are rolled back."""

    def __init__(self, task_id: int) -> None:
        super().__init__(f"The lease on task {task_id} is lost. Another attempt owns it now.")


class UnreadableTaskError(TasksError):
    """A row that bypassed the checks cannot be read; only its own task fails."""


class TaskBufferFullError(TasksError):
    """A buffer is full: the database is too slow, or unreachable."""

    def __init__(self, capacity: int) -> None:
        super().__init__(
            f"The buffer is full: {capacity} tasks wait for the database. "
            "Try again later, or raise its capacity."
        )


class UniqueKeyTakenError(TasksError):
    """Another task, whose id is ``holder``, has the same name and unique_key.

    A requeue raises it, and a create with ``on_conflict="raise"``. It is also raised for what would
    open a flow again whose name and key another open flow, ``holder``, has.
    """

    def __init__(
        self,
        name: str,
        unique_key: str,
        holder: int,
        advice: str = "Wait until that one has finished, or cancel it.",
        *,
        of: str = "unique_key",
        by: str = "task",
    ) -> None:
        super().__init__(f"{of} {unique_key!r} of {name} is taken by {by} {holder}. {advice}")
        self.name: str = name
        self.unique_key: str = unique_key
        self.holder: int = holder


class UnknownTaskError(TasksError, LookupError):
    """No task has the id ``task_id``, which is waited for."""

    def __init__(self, task_id: int) -> None:
        super().__init__(
            f"There is no task {task_id}: it is not committed, was pruned, or succeeded and its "
            "history keeps no row. Commit the transaction that creates it before you wait."
        )
        self.task_id: int = task_id


class WaitTimeoutError(TasksError, TimeoutError):
    """The task ``task_id`` is not over at the end of a wait, but in ``state``."""

    def __init__(self, task_id: int, name: str, state: str, waited: str) -> None:
        super().__init__(
            f"Task {task_id} ({name}) is {state} after a wait of {waited}. "
            "Wait again, or call explain_task to see why it is not over."
        )
        self.task_id: int = task_id
        self.state: str = state


class InvalidJobError(TasksError, ValueError):
    """A batch job's declaration cannot work, or its parameters do not fit."""


class BatchStateError(TasksError):
    """The state of the batch job's instance ``batch_id`` does not allow the request."""

    def __init__(self, batch_id: int, message: str) -> None:
        super().__init__(message)
        self.batch_id = batch_id


class NotThereError(TasksError):
    """The object to act on does not exist. The message says where to look."""


class ChunkRowError(TasksError):
    """A chunk failed because of one row, which was found by halving the chunk.

    ``key`` is the row's, and ``partition_no`` its partition's number.
    """

    def __init__(self, key: str, partition_no: int, why: str, skip_limit: int) -> None:
        may = f"no more than {skip_limit} may" if skip_limit else "none may"
        super().__init__(
            f"Row {key[:100]} of partition {partition_no} fails ({why}), and {may} be left out. "
            "Correct the row or the handler and restart, or raise skip_limit."
        )
        self.key: str = key
        self.partition_no: int = partition_no


class HandlerError(TasksError):
    """A handler's declaration cannot work, or there are two of one name."""


class ConfigurationError(TasksError):
    """A setting is missing or wrong."""


class SchemaError(TasksError):
    """The database's schema is not at the version that this code needs."""


class PublishError(TasksError):
    """The broker did not take a message. The rows are safe; a later scan publishes them again."""


class RefusedError(PublishError):
    """The broker accepts no messages now."""


class NoQueueError(PublishError):
    """The broker has no queue of that name now, so it did not keep the message."""

    def __init__(self, queue: str) -> None:
        super().__init__(
            f"The broker has no queue {queue} now. A worker that serves it creates it again."
        )


class HandlerTimeoutError(TasksError, TimeoutError):
    """The handler ran longer than its ``timeout``. Raised inside it, unless it is async."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The handler ran longer than its timeout of {seconds:g} s.")


class TaskCancelledError(BaseException):
    """The task was cancelled while its handler runs. Raised inside it, unless it is async.

    As asyncio's, it is no Exception: it is raised anywhere in the handler's calls, and what they
    swallow, such as an error while a line is logged, would swallow the cancel.
    """

    def __init__(self, reason: str = "The task was cancelled while it ran.") -> None:
        super().__init__(reason)


class OutboxError(TasksError):
    """A Celery task was called where the call cannot be written into the pool."""


NAMES_ELSEWHERE = {
    **dict.fromkeys(("countdown", "delay_seconds", "schedule_in"), "delay"),
    **dict.fromkeys(("eta", "scheduled_at", "at", "execute_at", "due_at"), "run_at"),
    **dict.fromkeys(("expires", "expire_at", "deadline"), "expires_at"),
    **dict.fromkeys(("max_retries", "retries", "attempts", "max_tries"), "max_attempts"),
    **dict.fromkeys(("default_retry_delay", "retry_delay", "retry_backoff", "backoff"), "retry"),
    **dict.fromkeys(("retry_intervals", "retry_policy"), "retry"),
    **dict.fromkeys(("soft_time_limit", "job_timeout"), "timeout"),
    **dict.fromkeys(("time_limit", "kill_after"), "hard_timeout"),
    **dict.fromkeys(("task_id", "job_id", "queueing_lock", "dedup_key"), "unique_key"),
    **dict.fromkeys(("routing_key", "queue_name"), "queue"),
    "autoretry_for": "on_error",
    "acks_late": "at_most_once",
    "lock": "order_key",
}  # names of options in other systems, and ours


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the most similar known word; None: none is similar."""
    return next(iter(_near(word, known)), None)


def similar(word: str, known: Iterable[str]) -> str:
    """Return a clause such as ``; similar: mail.send``, or an empty string."""
    near = _near(word, known)
    return f"; similar: {', '.join(near)}" if near else ""


def _near(word: str, known: Iterable[str]) -> list[str]:
    import difflib  # noqa: PLC0415  only for what is wrong

    return difflib.get_close_matches(word, sorted(known))


def suggestion_for(word: str, known: Collection[str]) -> str:
    """Return a clause such as ``; perhaps delay is meant``, or an empty string."""
    ours = NAMES_ELSEWHERE.get(word)
    near = ours if ours in known else nearest(word, known)
    return f"; perhaps {near} is meant" if near else ""
