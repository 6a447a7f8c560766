"""Start a supervisor that outlives this command; stop it from another."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from tasks_app.embedded.errors import EmbeddedError
from tasks_app.embedded.home import DEFAULT_FOLDER, locate, open_home
from tasks_app.embedded.lock import FolderLock, is_held, refusal
from tasks_app.embedded.stack import Stack
from tasks_app.embedded.state import LOCK, StackState, Urls, read_state, read_urls
from tasks_app.embedded.supervisor import supervise

if TYPE_CHECKING:
    from pathlib import Path

UP_PATIENCE_S = 120.0
DOWN_PATIENCE_S = 60.0
POLL_S = 0.05
READY = "ready"


def up(
    folder: Path | str = DEFAULT_FOLDER, *, detach: bool = True, persist: bool = True
) -> Urls | None:
    """Start a supervisor in the background and return when both servers answer.

    ``read_state`` then tells how they came up. Without ``detach`` this is ``supervise``, and
    returns None at the end.

    Raises:
        AlreadyOwnedError: the folder's servers are up already.
        EmbeddedError: they do not come up; the message is the supervisor's.
    """
    if not detach:
        supervise(folder, persist=persist)
        return None
    home = open_home(folder)
    _refuse_a_second(home.folder)
    log = home.log / "supervisor.log"
    answer = _start(home.folder, log, persist=persist)
    urls = read_urls(home.folder)
    if answer != READY or urls is None:
        reason = answer or f"The supervisor ended at once. Read {log}"
        raise EmbeddedError(reason)
    return urls


def down(folder: Path | str = DEFAULT_FOLDER) -> bool:
    """Stop the supervisor, or what a killed one left; return whether anything was running.

    Raises:
        EmbeddedError: the owner is not a supervisor, or does not end.
    """
    path = locate(folder)
    if not path.exists():
        return False
    state = _settled(path)
    if state is None:
        return sum(server.clear() for server in Stack(path).servers) > 0
    if not state.supervised:
        raise EmbeddedError(
            f"The servers in {path} live inside process {state.owner}, which is not "
            "`tasks-app up`. Stop that process."
        )
    with suppress(psutil.NoSuchProcess):
        psutil.Process(state.owner).terminate()
    _wait_released(path, state.owner)
    return True


def _refuse_a_second(folder: Path) -> None:
    # Acquired for a moment, because that waits for an owner that is just dying. The supervisor
    # acquires it for good, and refuses anybody who came in between.
    lock = FolderLock(folder / LOCK)
    lock.acquire()
    lock.release()


def _wait_released(path: Path, owner: int) -> None:
    """Wait for the lock, not for the process, which may stay as a zombie in a container."""
    deadline = time.monotonic() + DOWN_PATIENCE_S
    while is_held(path / LOCK):
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"Process {owner} does not end. Kill it with `kill -9 {owner}` and "
                "run `tasks-app down` again to clean up."
            )
        time.sleep(POLL_S)


def _start(folder: Path, log: Path, *, persist: bool) -> str:
    """Start the supervisor and return its report; empty if it ends before."""
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "tasks_app.embedded", str(folder), "--detach"]
    command += ["--report", str(writer), *([] if persist else ["--forget"])]
    try:
        with log.open("ab") as output:
            subprocess.run(  # noqa: S603  our own module, no shell
                command,
                pass_fds=[writer],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
        os.close(writer)
        return _read(reader)
    finally:
        os.close(reader)


def _read(reader: int) -> str:
    deadline, parts = time.monotonic() + UP_PATIENCE_S, list[bytes]()
    while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(reader, 65536)
        if not part:
            return b"".join(parts).decode()
        parts.append(part)
    return f"The servers did not answer within {UP_PATIENCE_S:.0f} s. Look into the logs."


def _settled(path: Path) -> StackState | None:
    """Return the owner's state, after waiting while it comes up; None: there is no owner."""
    deadline = time.monotonic() + UP_PATIENCE_S
    while (state := read_state(path)) is None and is_held(path / LOCK):
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"The owner of {path} neither comes up nor ends. {refusal(path / LOCK)}"
            )
        time.sleep(POLL_S)
    return state
