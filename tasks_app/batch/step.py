"""A step of a batch job: its source, its partitions, what is done with rows, and its pace."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import uniform
from typing import Any, Protocol

from sqlalchemy.orm.exc import StaleDataError

from tasks_app.domain.batch import policies
from tasks_app.domain.batch.policies import AbortKind, AbortWord, CommitWord, JoinKind, JoinWord
from tasks_app.domain.durations import Duration, named_duration
from tasks_app.domain.errors import InvalidJobError, InvalidTaskError
from tasks_app.domain.flow_control.circuit_breaker import Breaker
from tasks_app.domain.handlers.spec import Handler
from tasks_app.domain.locks import LostUpdateError
from tasks_app.domain.tasks.options import Locks, check_name
from tasks_app.domain.tasks.retry_policy import RetryPolicy
from tasks_app.pool.fragments.conditions import CHECK_STOPPED_EVERY_S
from tasks_app.runtime.db.errors import sqlstate

LONGEST_NAME = 60
# How long a run of a partition lasts before others have their turn; it continues later.
TURN = timedelta(minutes=10)


class Step:
    """One step of a job. Its declaration is checked at once.

    >>> def count(ctx, rows):
    ...     ctx.state["rows"] = ctx.state.get("rows", 0) + len(rows)
    >>> step = Step("count", Table("employee"), chunk=count, commit_every="500 rows or 1s")

    Args:
        name: keep it, or restarts do not find what is done.
        source: a Table, Query or File, or a function of the job's parameters that returns one.
            None: it reads nothing, and ``chunk`` is called once, with no rows.
        chunk: ``chunk(ctx, rows)``, a plain function, called with some rows at a time; its writes
            through ``ctx.session`` or ``ctx.connection`` are committed with the checkpoint.
        planner: how the source is split, or a function of the parameters; default: evenly, into
            ranges of about 50,000 rows.
        at_least: the step does not start with fewer partitions. A file without records has none.
        aligned: no partition may span two of the database's own.
        page_by: a unique column that orders rows of equal keys; default: the table's primary key.
        commit_every: the size of a chunk: ``"1000 rows or 500ms"``, the first that is reached.
        commit: ``"every"`` chunk, or ``"end"``: a partition is one transaction, for jobs that run
            alone.
        after: the steps that must be complete; default: the one before it in the job.
        join: what of its partitions must be complete: ``"all"``, ``"any"``, ``("quorum", 0.9)``,
            ``"best_effort"``.
        on_abort: when a partition has failed for good: ``"fail_fast"`` (default where all must be
            complete), ``"continue"`` (default otherwise), ``("retry_partition", 2)``,
            ``("compensate", handler)`` with ``handler(ctx)``.
        reduce: ``reduce(ctx, results)``, called when the join is satisfied, with the results of
            complete partitions by number; what it returns is the step's result.
        skip_limit: how many rows of the step may fail and be left out, with their reasons.
        skips: the exceptions by which a row may be left out. Others fail the partition.
        steal: when no partition waits, one that runs gives the second half of what it has left to
            an idle worker, as a partition with the next free number. Ranges of keys only.
        turn: after this long a run makes room for others, and continues later.
        queue: where its tasks go.
        priority: of its tasks; 0 is first, 9 last.
        retry: the waits between attempts of a partition; each starts at the last checkpoint.
        max_attempts: after so many counted failures a partition has failed for good.
        timeout: raised inside the run after this long; a turn takes half of it at most.
        hard_timeout: the process is killed after this long; default one hour. A turn takes half of
            it at most.
        depends_on: the breaker of its partitions.
        locks: what each partition locks while it runs: under an exclusive lock they run one at a
            time, also beside those of other jobs.

    Raises:
        InvalidJobError: the declaration is not valid.
    """

    def __init__(  # noqa: PLR0913  a declaration, all by keyword
        self,
        name: str,
        source: Any,
        *,
        chunk: Callable[..., Any],
        planner: Any = None,
        at_least: int = 0,
        aligned: bool = False,
        page_by: str | None = None,
        commit_every: CommitWord = 1000,
        commit: str = "every",
        after: Sequence[str] | None = None,
        join: JoinWord = "all",
        on_abort: AbortWord | None = None,
        reduce: Callable[..., Any] | None = None,
        skip_limit: int = 0,
        skips: Sequence[type[Exception]] = (Exception,),
        steal: bool = False,
        turn: Duration = TURN,
        queue: str = "default",
        priority: int | None = None,
        retry: str | Sequence[Duration] | RetryPolicy | None = None,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        hard_timeout: Duration | None = None,
        depends_on: str | Breaker | None = None,
        locks: str | Sequence[str] | Locks | None = None,
    ) -> None:
        self.name: str = checked("Step", name)
        if commit not in {"every", "end"}:
            raise InvalidJobError(f'commit={commit!r} of step {name} is neither "every" nor "end".')
        if any(inspect.iscoroutinefunction(each) for each in (chunk, reduce)):
            raise InvalidJobError(
                f"Step {name} has a coroutine function. Declare plain ones: a chunk is one "
                "transaction, from the read to the commit."
            )
        if skip_limit < 0:
            raise InvalidJobError(f"skip_limit of step {name} is negative. Give 0 or more.")
        self.source = source
        self.planner = planner
        self.at_least = at_least
        self.aligned = aligned
        self.page_by = page_by
        self.chunk = chunk
        self.at_end: bool = commit == "end"
        """All chunks of a partition are one commit."""
        self.after: tuple[str, ...] | None = None if after is None else tuple(after)
        try:
            self.commit_every: policies.CommitEvery = policies.parse_commit_every(commit_every)
            self.join: policies.Join = policies.parse_join(join)
            if on_abort is None:
                whole = self.join.kind is JoinKind.ALL
                on_abort = AbortKind.FAIL_FAST if whole else AbortKind.CONTINUE
            self.on_abort: policies.OnAbort = policies.parse_on_abort(on_abort)
            self.turn: timedelta = _turn(turn, timeout=timeout, hard_timeout=hard_timeout)
        except (InvalidTaskError, ValueError) as error:
            raise InvalidJobError(f"Step {name!r} is not valid: {error}") from None
        undo: Any = on_abort[1] if self.on_abort.kind is AbortKind.COMPENSATE else None
        self.compensate: Callable[..., Any] | None = undo
        self.reduce = reduce
        self.skip_limit = skip_limit
        self.skips: tuple[type[Exception], ...] = tuple(skips)
        self.steal: bool = steal and not self.at_end
        self.options: dict[str, Any] = {  # of its handlers
            "queue": queue,
            "retry": retry,
            "max_attempts": max_attempts,
            "timeout": timeout,
            "hard_timeout": hard_timeout,
        }
        self.depends_on = depends_on
        self.locks = locks
        self.priority = priority

    def source_of(self, params: Any) -> Any:
        return self.source(params) if callable(self.source) else self.source

    def planner_of(self, params: Any) -> Any:
        return self.planner(params) if callable(self.planner) else self.planner

    def __repr__(self) -> str:
        return f"<step {self.name}>"


Declared = Handler[Any, Any]


@dataclass(frozen=True, slots=True)
class RunTuning:
    most_tries: int = 8  # of a chunk with transient errors; then the error counts as others do
    first_wait_s: float = 0.05
    longest_wait_s: float = 5.0
    others_wait_s: float = 1.0  # when other runs hold its remaining rows and may give them back
    look_every_s: float = (
        CHECK_STOPPED_EVERY_S  # how often a run checks whether its queue stands still
    )
    steal_look_every_s: float = 1.0  # whether a partition waits, so that none need be divided
    measure_every_s: float = 30.0  # how much is left, which reads half of the keys
    worth_s: float = 4.0  # less work is not divided: a second worker starts with small chunks

    def wait_s(self, tries: int) -> float:
        """``tries`` is 1 after the first one."""
        longest = min(self.longest_wait_s, self.first_wait_s * float(2 ** (tries - 1)))
        return uniform(longest / 2, longest)  # noqa: S311  not all at once


class Job(Protocol):
    name: str
    steps: dict[str, Step]
    after: dict[str, tuple[str, ...]]  # what each step waits for
    handlers: dict[str, dict[str, Declared]]
    tuning: RunTuning

    def given(self, params: dict[str, Any]) -> Any: ...


def _turn(turn: Duration, **limits: Duration | None) -> timedelta:
    """Time limits are for a chunk that hangs, not for many chunks, so a turn takes half of one."""
    given = [(name, limit) for name, limit in limits.items() if limit is not None]
    spans = [named_duration(name, limit) / 2 for name, limit in given]
    return min([named_duration("turn", turn), *spans])


def checked(kind: str, name: Any) -> str:
    try:
        check_name(name)
    except InvalidTaskError as error:
        raise InvalidJobError(f"{kind} {name!r} is not valid: {error}") from None
    if len(name) > LONGEST_NAME or ":" in name:
        raise InvalidJobError(
            f"{kind} {name!r} has no valid name. Use up to {LONGEST_NAME} characters, no colon."
        )
    return str(name)


_TRANSIENT = frozenset({"40001", "40P01", "55P03"})  # serialisation failure, deadlock, lock timeout
RUN_TUNING = RunTuning()


def is_transient(error: BaseException) -> bool:
    """Whether the chunk may succeed when it is read again: others have left the rows by then."""
    return sqlstate(error) in _TRANSIENT or isinstance(error, StaleDataError | LostUpdateError)
