"""Waiting for the end of processes that are not our children."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

POLL_S = 0.01


def wait_ended(processes: Iterable[psutil.Process], patience_s: float) -> list[psutil.Process]:
    """Return those that still run after ``patience_s``.

    A zombie has ended: in a container whose first process reaps nobody it stays for ever,
    and ``psutil.wait_procs`` would wait for it as long.
    """
    deadline = time.monotonic() + patience_s
    left = list(processes)
    while left := [process for process in left if not _has_ended(process)]:
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    return left


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
