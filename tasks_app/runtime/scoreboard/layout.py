"""The layout of the slot file: what stands where, and how it is read.

First come the heads of the children's records and what the parent tells all children; behind them
one list per child of its runs. The file is sparse: lists that were never written take no room.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tasks_app.domain.tasks.run import Run
from tasks_app.runtime.scoreboard.process_birth import born_at, is_zombie

SLOTS = 256
MOST_RUNS = 10_240
"""Runs that one child's list has room for; of more it tells how many."""
_HEAD = struct.Struct("=q d 160s d d q q q")
_RUN = struct.Struct("=q q d d")
_HEAD_SIZE = 256
_PIDS = struct.Struct("=" + f"q {_HEAD_SIZE - 8}x" * SLOTS)
"""Of all records at once: most are free, and the parent looks often."""
_KILL = struct.Struct("=q d")
_KILL_AT = _HEAD_SIZE - _KILL.size
"""In a head's unused end, which its child does not write."""
NO_HEAD, NO_RUN = bytes(_HEAD_SIZE), bytes(_RUN.size)
STAGE_AT, REPORTING_AT, TIDY_AT = (SLOTS * _HEAD_SIZE + n for n in (0, 1, 8))
_TIDY = struct.Struct("=d")
_RUNS_AT = SLOTS * _HEAD_SIZE + 4096
FILE_SIZE = _RUNS_AT + SLOTS * MOST_RUNS * _RUN.size


@dataclass(frozen=True, slots=True)
class SlotView:
    """One record, read. Instants are of ``time.monotonic``, which all processes share."""

    index: int
    pid: int
    born: float
    owner: str
    messages: int
    """How many are in hand; in a pool of threads there may be several."""
    since: float
    """When the first of ``running`` started; 0: nothing runs."""
    kill_at: float
    """When the parent shall kill the child; 0: never."""
    beat: float
    hungry: float
    """When it was last seen idle while tasks were due that nobody took; 0: it was not."""
    running: tuple[Run, ...]
    untold: int = 0
    """How many more run than the list has room for."""
    limits: tuple[tuple[float, float], ...] = ()
    """Of each of ``running``: since when, and until when it may run."""
    killed: float = 0.0
    """When the parent killed the child, as a run was past its hard limit; 0: it did not."""

    def past(self, at: float) -> dict[Run, float]:
        """Return the runs that were past their hard limits then, with these limits in seconds."""
        runs = zip(self.running, self.limits, strict=False)
        return {run: until - since for run, (since, until) in runs if 0 < until <= at}

    @property
    def dead(self) -> bool:
        """Whether the process is gone. A zombie is, and so is a pid that was given out anew."""
        return born_at(self.pid) != self.born or is_zombie(self.pid)


def head_at(index: int) -> int:
    return index * _HEAD_SIZE


def run_at(index: int, place: int) -> int:
    return _RUNS_AT + (index * MOST_RUNS + place) * _RUN.size


def head(  # noqa: PLR0913  a record
    *,
    pid: int,
    born: float,
    owner: str,
    beat: float,
    hungry: float,
    places: int,
    untold: int,
    messages: int,
) -> bytes:
    """Return a head as it is written; ``places``: how many of the list were ever used."""
    return _HEAD.pack(pid, born, owner.encode()[:160], beat, hungry, places, untold, messages)


def a_run(run: Run, since: float, kill_at: float) -> bytes:
    return _RUN.pack(run[0], run[1], since, kill_at)


def kill(pid: int, instant: float) -> bytes:
    return _KILL.pack(pid, instant)


def kill_at(index: int) -> int:
    return head_at(index) + _KILL_AT


def occupied(memory: memoryview) -> list[int]:
    return [index for index, pid in enumerate(_PIDS.unpack_from(memory)) if pid]


def read(memory: memoryview, index: int) -> SlotView | None:
    pid, born, owner, beat, hungry, places, untold, messages = _HEAD.unpack_from(
        memory, head_at(index)
    )
    if pid == 0:
        return None
    listed = memory[run_at(index, 0) : run_at(index, places)]
    runs = [run for run in _RUN.iter_unpack(listed) if run[0]]
    killed_pid, killed = _KILL.unpack_from(memory, kill_at(index))
    return SlotView(
        index,
        pid,
        born,
        owner.rstrip(b"\0").decode(),
        messages,
        min((since for _, _, since, _ in runs if since), default=0.0),
        min((kill_at for *_, kill_at in runs if kill_at), default=0.0),
        beat,
        hungry,
        tuple(Run(task_id, attempt) for task_id, attempt, *_ in runs),
        untold,
        tuple((since, until) for _, _, since, until in runs),
        killed if killed_pid == pid else 0.0,
    )


def tidy_at(instant: float) -> bytes:
    return _TIDY.pack(instant)


def read_tidy_at(memory: memoryview) -> float:
    instant: float = _TIDY.unpack_from(memory, TIDY_AT)[0]
    return instant
