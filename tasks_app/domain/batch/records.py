"""Instances of batch jobs: their records, the parameters that identify one, and its figures."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from enum import StrEnum
from typing import Any, NamedTuple

from pydantic import BaseModel, RootModel, ValidationError

from tasks_app.domain.errors import InvalidJobError
from tasks_app.domain.partition.records import RowCounts, Status, StoredPartition
from tasks_app.domain.tasks.payload import encode_object
from tasks_app.domain.tasks.payload_checks import check_read_back, dump_model
from tasks_app.domain.tasks.payload_type import explain


class BatchStatus(StrEnum):
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"  # a stop was requested; running partitions end at their next chunk
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    COMPLETED = "COMPLETED"
    ABANDONED = "ABANDONED"  # for good; the same parameters make a new instance


class StepStatus(StrEnum):
    WAITING = "WAITING"  # for the steps before it
    PLANNING = "PLANNING"
    RUNNING = "RUNNING"
    COMPENSATING = "COMPENSATING"
    REDUCING = "REDUCING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def is_active(self) -> bool:
        return self in ACTIVE


ACTIVE = frozenset(
    {StepStatus.PLANNING, StepStatus.RUNNING, StepStatus.COMPENSATING, StepStatus.REDUCING}
)


@dataclass(frozen=True, slots=True)
class Batch:
    id: int
    job: str
    params: dict[str, Any]
    status: BatchStatus
    run: int  # 1 at first; each restart adds 1
    created_at: datetime
    started_at: datetime  # of the newest run
    ended_at: datetime | None
    error: str | None


class JobRun(NamedTuple):
    """What a start or restart began."""

    batch_id: int
    run: int
    new: bool  # False: the instance existed, and goes on


@dataclass(frozen=True, slots=True)
class BatchStep:
    batch_id: int
    step: str
    status: StepStatus
    run: int  # the newest run with this step
    round: int  # how often aborted partitions were restarted in this run
    plan: dict[str, Any] | None  # the method of its plan, and its cost
    result: Any  # of reduce
    started_at: datetime | None
    ended_at: datetime | None
    error: str | None

    @property
    def phase(self) -> str:
        """What a new join will decide about; it differs in each round."""
        return f"{self.status} {self.round}"


class PartTally(NamedTuple):
    """The number of partitions of a step by status, and their rows."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    running: int = 0
    compensated: int = 0
    counts: RowCounts = RowCounts()


@dataclass(frozen=True, slots=True)
class PartResult:
    """What a partition leaves to reduce."""

    partition_no: int
    low: str | None
    high: str | None
    status: Status
    state: dict[str, Any]  # `ctx.state` after its last chunk
    counts: RowCounts


@dataclass(frozen=True, slots=True)
class Skipped:
    step: str
    partition_no: int
    key: str  # nothing else of the row is kept
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class BatchView:
    """An instance of a job."""

    batch: Batch
    steps: tuple[BatchStep, ...]
    tallies: dict[str, PartTally] = field(default_factory=dict)
    alive: int = 0  # how many of its tasks wait or run
    at: datetime | None = None  # when this was read, by the database's clock

    @property
    def is_lost(self) -> bool:
        """Whether it has the status of a running instance, but no task."""
        return self.batch.status in {BatchStatus.RUNNING, BatchStatus.STOPPING} and not self.alive


LONGEST_PARAMS = 16 * 1024  # bytes of JSON
_ALL_DIGITS = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
_A_DAY = date(2000, 1, 2)  # for times with a zone


def checked_params(
    job: str, model: type[BaseModel] | None, given: Mapping[str, Any] | BaseModel | None
) -> dict[str, Any]:
    """Return the parameters as plain JSON, with defaults.

    Raises InvalidJobError: they do not fit the job's model, before or after storing.
    InvalidTaskError: they are not JSON, or would be read back differently.
    """
    plain: Any = {} if given is None else given
    if model is not None:
        foreign = isinstance(plain, BaseModel) and not isinstance(plain, model)
        plain = _checked(job, model.model_validate, plain.model_dump() if foreign else plain)
    elif plain and not isinstance(plain, Mapping | BaseModel):
        problem = f"params of job {job} are not a dict. Give a dict or a pydantic model."
        raise InvalidJobError(problem)
    text = encode_object(plain, "params", LONGEST_PARAMS)
    if model is not None:
        check_read_back(plain, _checked(job, model.model_validate_json, text), "params")
    params: dict[str, Any] = json.loads(text)
    return params


def _checked(job: str, check: Callable[[Any], Any], value: Any) -> Any:
    try:
        return check(value)
    except ValidationError as error:
        path, problem = explain(error)
        where = path.replace("payload", "params", 1)
        raise InvalidJobError(f"{where} of job {job} {problem}.") from None


def identity(
    params: Mapping[str, Any] | BaseModel, identifying: Sequence[str] | None = None
) -> str:
    """Return a hash of the identifying parameters; ``identifying`` None: all.

    ``params`` are as the handlers get them: read back from the stored ones.
    """
    plain = params if isinstance(params, Mapping) else dump_model(params, "params", round_trip=True)
    chosen = {k: v for k, v in _parts(params, plain) if identifying is None or k in identifying}
    return hashlib.sha256(_braced(chosen).encode()).hexdigest()


def _canonical(value: Any, plain: Any) -> str:
    """Return a text that is the same for equal values; ``plain`` is the value as JSON.

    Sets have no order, numbers no insignificant digits, instants no zone.
    """
    match value:
        case RootModel():
            return _canonical(value.root, plain)
        case bool():
            return json.dumps(plain)
        case int() | float() | Decimal():
            exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
            return str(_ALL_DIGITS.normalize(exact) or 0)
        case time() if value.utcoffset() is not None:
            return _canonical(datetime.combine(_A_DAY, value), plain)
        case datetime() if value.utcoffset() is not None:
            return json.dumps(value.astimezone(UTC).isoformat())
        case list() | tuple() | set() | frozenset() | deque() if _fits(value, plain, list):
            items = map(_canonical, value, plain)
            return f"[{','.join(sorted(items) if isinstance(value, set | frozenset) else items)}]"
        case _ if isinstance(plain, dict):
            return _braced(dict(_parts(value, plain)))
        case _:
            return json.dumps(plain)


def _parts(value: Any, plain: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield names and canonical values of a dict, a model or a dataclass."""
    if isinstance(value, Mapping) and _fits(value, plain, dict):
        for key, item, name in zip(value, value.values(), plain, strict=True):
            yield (
                (name if isinstance(key, str) else _canonical(key, name)),
                _canonical(item, plain[name]),
            )
        return
    fields = getattr(value, "__pydantic_fields__", {})
    names = {each.serialization_alias or each.alias or name: name for name, each in fields.items()}
    for name, item in plain.items():
        yield name, _canonical(getattr(value, names.get(name, name), item), item)


def _fits(value: Any, plain: Any, kind: type[list[Any] | dict[str, Any]]) -> bool:
    """Whether it was written item by item, and not by a serializer of the user's."""
    return isinstance(plain, kind) and len(plain) == len(value)


def _braced(parts: Mapping[str, str]) -> str:
    return f"{{{','.join(f'{json.dumps(k)}:{v}' for k, v in sorted(parts.items()))}}}"


WIDTH = 20


class Figures(NamedTuple):
    read: int
    rows: int | None  # to read, by the plan's estimate; None: unknown
    per_second: float | None  # since the first partition started; None: nothing was read
    left: timedelta | None  # the remaining time at this speed
    skew: float | None  # largest partition / mean, in read or estimated rows; 1: all alike

    @property
    def fraction(self) -> float | None:
        """The share of rows that was read; None: unknown."""
        return None if not self.rows else min(1.0, self.read / self.rows)


def figures_of(partitions: Iterable[StoredPartition], now: datetime | None) -> Figures:
    """Return the figures of a step; the size of a complete partition is the rows that it read."""
    parts = list(partitions)
    read = sum(part.counts.read for part in parts)
    known = [
        part.counts.read if is_complete else max(part.partition.rows or 0, part.counts.read)
        for part in parts
        if (is_complete := part.status is Status.COMPLETED) or part.partition.rows is not None
    ]
    rows = sum(known) if known and len(known) == len(parts) else None
    mean = sum(known) / len(known) if known else 0
    skew = max(known) / mean if mean else None
    speed, left = None, None
    starts = [part.started_at for part in parts if part.started_at is not None]
    if starts and read:
        is_active = any(part.status in {Status.PLANNED, Status.RUNNING} for part in parts)
        end = now if is_active and now else max(part.ended_at or part.changed_at for part in parts)
        speed = read / max(0.001, (end - min(starts)).total_seconds())
    if rows is not None and speed:
        left = timedelta(seconds=max(0, rows - read) / speed)
    return Figures(read, rows, speed, left, skew)


def progress_bar(fraction: float | None, width: int = WIDTH) -> str:
    if fraction is None:
        return "?" * width
    full = int(fraction * width)
    return "#" * full + "." * (width - full)
