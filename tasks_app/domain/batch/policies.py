"""The policies of a step, and what follows from them when its tasks have ended."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeAlias

from tasks_app.domain.batch.records import BatchStatus, PartTally, StepStatus
from tasks_app.domain.durations import parse_duration

MOST_ROWS = 1_000_000
MOST_TRIES = 100
DEFAULT_CHUNK_TRIES = 2
LONGEST_CHUNK = timedelta(hours=1)


class JoinKind(StrEnum):
    ALL = "all"
    ANY = "any"  # the first one that completes decides; the others are cancelled
    QUORUM = "quorum"  # a share of them: they are counted after all have ended
    BEST_EFFORT = "best_effort"  # the step is complete when all have ended, even if all failed


@dataclass(frozen=True, slots=True)
class Join:
    kind: JoinKind = JoinKind.ALL
    share: float = 1.0  # of a quorum

    @property
    def enough(self) -> int | None:
        """The number of completed partitions that ends the step at once; None: all must end."""
        return 1 if self.kind is JoinKind.ANY else None

    def satisfied(self, completed: int, total: int) -> bool:
        """Whether ``completed`` partitions are enough; 0 of 0 are, for each kind."""
        needed = {
            JoinKind.ALL: total,
            JoinKind.ANY: min(1, total),
            JoinKind.QUORUM: math.ceil(self.share * total - 1e-9),
            JoinKind.BEST_EFFORT: 0,
        }
        return completed >= needed[self.kind]

    def __str__(self) -> str:
        return f"quorum {self.share:g}" if self.kind is JoinKind.QUORUM else self.kind.value


class AbortKind(StrEnum):
    """What follows when a partition is in the error pool."""

    FAIL_FAST = "fail_fast"  # the others end at their next chunk, and the step fails
    CONTINUE = "continue"  # the others go on; at the end the join decides
    RETRY_PARTITION = "retry_partition"  # like CONTINUE; then it restarts from its checkpoint
    COMPENSATE = "compensate"  # like CONTINUE; then a handler undoes its commits, and it is reset


@dataclass(frozen=True, slots=True)
class OnAbort:
    kind: AbortKind = AbortKind.FAIL_FAST
    tries: int = 0  # how often RETRY_PARTITION restarts it

    def __str__(self) -> str:
        return f"{self.kind.value} {self.tries}" if self.tries else self.kind.value


@dataclass(frozen=True, slots=True)
class CommitEvery:
    """The bounds of a chunk: a number of rows, and a time."""

    rows: int = 1000
    span: timedelta = timedelta(seconds=1)  # rows stay locked this long, and online users wait

    def __str__(self) -> str:
        return f"{self.rows} rows or {round(self.span.total_seconds() * 1000)} ms"


JoinWord: TypeAlias = str | tuple[str, float]
AbortWord: TypeAlias = str | tuple[str, Any]
CommitWord: TypeAlias = int | str | tuple[int, Any]
_WRITTEN = re.compile(r"^\s*(\d+)\s*(?:rows?)?\s*(?:(?:or|,)\s*(\d+(?:\.\d+)?\s*(?:ms|s|m)))?\s*$")


def parse_join(word: JoinWord) -> Join:
    """Return the policy; ``("quorum", 0.9)`` is nine of ten. Raises ValueError."""
    kind, *more = (word,) if isinstance(word, str) else word
    if kind == JoinKind.QUORUM and len(more) == 1:
        share: Any = more[0]
        if isinstance(share, int | float) and not isinstance(share, bool) and 0 < share <= 1:
            return Join(JoinKind.QUORUM, float(share))
    if kind in set(JoinKind) - {JoinKind.QUORUM} and not more:
        return Join(JoinKind(kind))
    raise ValueError(
        f'join={word!r} is not a join policy. Use "all", "any", "best_effort" or a share: '
        '("quorum", 0.9).'
    )


def parse_on_abort(word: AbortWord) -> OnAbort:
    """Return the policy; the caller reads the handler of ``("compensate", handler)``."""
    kind, *more = (word,) if isinstance(word, str) else word
    if kind == AbortKind.RETRY_PARTITION and len(more) <= 1:
        tries = more[0] if more else DEFAULT_CHUNK_TRIES
        if isinstance(tries, int) and not isinstance(tries, bool) and 1 <= tries <= MOST_TRIES:
            return OnAbort(AbortKind.RETRY_PARTITION, tries)
    if kind == AbortKind.COMPENSATE and len(more) == 1 and callable(more[0]):
        return OnAbort(AbortKind.COMPENSATE)
    if kind in {AbortKind.FAIL_FAST, AbortKind.CONTINUE} and not more:
        return OnAbort(AbortKind(kind))
    raise ValueError(
        f'on_abort={word!r} is not an abort policy. Use "fail_fast", "continue", '
        '("retry_partition", 2) or ("compensate", handler).'
    )


def parse_commit_every(word: CommitWord) -> CommitEvery:
    """Read ``1000``, ``"1000 rows or 500ms"`` or ``(1000, "500ms")``; raises ValueError."""
    given: Any = word
    if isinstance(word, str):
        found = _WRITTEN.match(word)
        given = (int(found[1]), found[2]) if found else 0
    try:
        rows, span = given if isinstance(given, Sequence) else (given, None)
        if isinstance(rows, bool) or not isinstance(rows, int):
            raise ValueError
        bounds = CommitEvery(rows, CommitEvery().span if span is None else parse_duration(span))
    except ValueError:
        bounds = CommitEvery(0)
    if not 1 <= bounds.rows <= MOST_ROWS or not timedelta(0) < bounds.span <= LONGEST_CHUNK:
        raise ValueError(
            f"commit_every={word!r} is out of range. Use 1 to {MOST_ROWS} rows and up to an hour, "
            'for example "1000 rows or 500ms".'
        )
    return bounds


FIRST_ROWS = 100  # of the first chunk, as the cost of a row is unknown
GROWTH = 4
MARGIN = 0.8  # the planned share of a chunk's time: rows are not all alike
WORTH_CHUNKS = 4  # fewer remaining chunks are not divided


class ChunkPace:
    """The size of the chunks of one run, learned from earlier ones."""

    def __init__(self, bounds: CommitEvery) -> None:
        self._most = bounds.rows
        self._span_s = bounds.span.total_seconds()
        self.size: int = min(FIRST_ROWS, self._most)
        self._row_s = 0.0

    def learn(self, rows: int, took_s: float) -> None:
        """Set the size after a chunk; it grows by GROWTH at most, and shrinks at once."""
        if rows < 1:
            return
        self._row_s = max(took_s / rows, 1e-9)
        fitting = int(self._span_s * MARGIN / self._row_s)
        self.size = max(1, min(self._most, self.size * GROWTH, fitting))

    def is_worth_dividing(self, rows: int, worth_s: float) -> bool:
        """Whether ``rows`` take long enough, at the speed of the last chunk, to share them."""
        return rows >= WORTH_CHUNKS * self.size and rows * self._row_s >= worth_s


class Move(StrEnum):
    """The next action of a step's join."""

    AGAIN = "again"  # restart the failed partitions from their checkpoints
    COMPENSATE = "compensate"  # undo the commits of the failed partitions
    REDUCE = "reduce"
    COMPLETE = "complete"
    FAIL = "fail"
    STOP = "stop"


def after_partitions(
    tally: PartTally, join: Join, on_abort: OnAbort, *, rounds: int, stopping: bool, reduces: bool
) -> Move:
    """Return the move after the partitions, or enough of them, have ended.

    ``rounds``: how often failed ones were restarted. A stop leaves the rest undone.
    """
    done = Move.REDUCE if reduces else Move.COMPLETE
    if stopping:
        return Move.STOP if reduces or tally.completed < tally.total else Move.COMPLETE
    if tally.failed:
        if on_abort.kind is AbortKind.FAIL_FAST and join.enough is None:
            return Move.FAIL
        if on_abort.kind is AbortKind.RETRY_PARTITION and rounds < on_abort.tries:
            if not (join.enough and join.satisfied(tally.completed, tally.total)):
                return Move.AGAIN
        elif on_abort.kind is AbortKind.COMPENSATE:
            return Move.COMPENSATE
    return done if join.satisfied(tally.completed, tally.total) else Move.FAIL


def after_compensation(tally: PartTally, join: Join, *, stopping: bool, reduces: bool) -> Move:
    """Return the move after all failed partitions were compensated, or one could not be."""
    if stopping:
        return Move.STOP
    if tally.failed or not join.satisfied(tally.completed, tally.total):
        return Move.FAIL
    return Move.REDUCE if reduces else Move.COMPLETE


def ready_steps(
    after: Mapping[str, Sequence[str]], statuses: Mapping[str, StepStatus]
) -> list[str]:
    return [
        step
        for step, before in after.items()
        if statuses[step] is StepStatus.WAITING
        and all(statuses[each] is StepStatus.COMPLETED for each in before)
    ]


def status_of_batch(statuses: Mapping[str, StepStatus], *, stopping: bool) -> BatchStatus | None:
    """Return how an instance has ended; None: a step is active. Start all ready steps first."""
    found = set(statuses.values())
    if any(status.is_active for status in found):
        return None
    if found <= {StepStatus.COMPLETED}:
        return BatchStatus.COMPLETED
    if StepStatus.FAILED in found:
        return BatchStatus.FAILED
    return BatchStatus.STOPPED if stopping or StepStatus.STOPPED in found else None


def error_of_batch(statuses: Mapping[str, StepStatus]) -> str | None:
    failed = [name for name, status in statuses.items() if status is StepStatus.FAILED]
    return f"failed: {', '.join(failed)}" if failed else None


def steps_to_rerun(statuses: Mapping[str, StepStatus]) -> list[str]:
    return [step for step, status in statuses.items() if status is not StepStatus.COMPLETED]
