"""Servers of this folder whose owner was killed: found by their mark, and stopped."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tasks_app.embedded.home import Home

PATIENCE_S = 20
POLL_S = 0.01


def stop_orphans(home: Home, names: tuple[str, ...], farewell: signal.Signals) -> int:
    """Stop processes of this folder with one of ``names``; return how many there were.

    The caller holds the lock: then a process with the folder's mark has no owner. The mark is in
    the command line of the server and in the titles of PostgreSQL's children, so a reused process
    id cannot be mistaken for one.
    """
    found = _marked(home, names)
    pids = {process.pid for process in found}
    for process in found:
        # Children follow their server; without one they end by themselves.
        if _parent(process) not in pids:
            _send(process, farewell)
    stubborn = wait_ended(found, PATIENCE_S)
    for process in stubborn:
        _send(process, signal.SIGKILL)
    wait_ended(stubborn, PATIENCE_S)
    return len(found)


def wait_ended(processes: Iterable[psutil.Process], patience_s: float) -> list[psutil.Process]:
    """Return those that still run after ``patience_s``; they need not be our children.

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


def _marked(home: Home, names: tuple[str, ...]) -> list[psutil.Process]:
    users = {os.geteuid(), *(() if home.account is None else (home.account.uid,))}
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.name().startswith(names)
                and process.uids().real in users
                and home.mark in " ".join(process.cmdline())
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return None


def _send(process: psutil.Process, farewell: signal.Signals) -> None:
    try:
        process.send_signal(farewell)
    except psutil.NoSuchProcess:
        return
