"""When a process started: it tells apart the users of one pid. Linux says so in ``/proc``.

Probes use it, so it imports nothing slow.
"""

from __future__ import annotations

import os
import sys

_STATE, _START = 0, 19
"""Places in ``/proc/PID/stat`` behind the name, as proc(5) counts them from its third."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

if sys.platform != "linux":
    import psutil

    def _process(pid: int) -> psutil.Process | None:
        try:
            return psutil.Process(pid)
        except psutil.NoSuchProcess:
            return None


def born_at(pid: int) -> float | None:
    """Return when a process started, on a clock that nobody sets; None: there is none.

    Linux counts from the boot. Counted from the epoch, by a clock that may be set, every live child
    would look dead after a correction of the time.
    """
    if sys.platform != "linux":
        process = _process(pid)
        return None if process is None else process.create_time()
    facts = _stat(pid)
    return None if facts is None else round(int(facts[_START]) / _TICKS_PER_S, 2)


def own_birth() -> float:
    born = born_at(os.getpid())
    if born is None:
        raise RuntimeError("The system tells nothing of this process. Mount /proc.")
    return born


def is_zombie(pid: int) -> bool:
    """Tell whether a process has ended, and nobody has asked how."""
    if sys.platform != "linux":
        process = _process(pid)
        return process is not None and process.status() == "zombie"
    facts = _stat(pid)
    return facts is not None and facts[_STATE] in {b"Z", b"X"}


def _stat(pid: int) -> list[bytes] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  pathlib: 8 ms
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return line.rpartition(b") ")[2].split()  # its name may hold anything
