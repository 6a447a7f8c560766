"""Servers of this folder whose owner was killed: found by their mark, and stopped."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil

from tasks_app.embedded.ending import wait_ended

if TYPE_CHECKING:
    from tasks_app.embedded.home import Home

PATIENCE_S = 20


def stop_orphans(home: Home, names: tuple[str, ...], farewell: signal.Signals) -> int:
    """Stop what still runs here under one of ``names`` and return how many there were.

    Hold the lock: with it, a process that carries the folder's mark has no owner. The
    mark is in the command line of the server and in the titles of PostgreSQL's children,
    which no reused process id can imitate.
    """
    found = _marked(home, names)
    pids = {process.pid for process in found}
    for process in found:
        # Children follow their server; without one they see that by themselves.
        if _parent(process) not in pids:
            _send(process, farewell)
    stubborn = wait_ended(found, PATIENCE_S)
    for process in stubborn:
        _send(process, signal.SIGKILL)
    wait_ended(stubborn, PATIENCE_S)
    return len(found)


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
