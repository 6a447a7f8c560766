"""A shell on a terminal, as a reader of the documents has one."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import socket
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import Self

PROMPT = "<ready>"
COLUMNS = 160
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LONGEST_S = 60
"""That a command may take."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Terminal:
    """An interactive bash: it has jobs, and `kill %1` means all processes of one."""

    def __init__(self, folder: Path) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        mode = termios.tcgetattr(theirs)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, mode)
        known = ("TASKS_APP_", "PYTHONPATH", "VIRTUAL_ENV", "PS1", "PROMPT_COMMAND", "COLUMNS")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(known)}
        self._file = ours
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            cwd=folder,
            env={
                **clean,
                "PS1": PROMPT,
                "PS2": "",
                "TERM": "dumb",
                "VIRTUAL_ENV_DISABLE_PROMPT": "1",
            },
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  a tty has jobs
        )
        os.close(theirs)
        self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._file, b"exit\nexit\n")  # the first one is told of jobs that are left
        try:
            self._shell.wait(20)
        except subprocess.TimeoutExpired:
            self._shell.kill()
            self._shell.wait()
        os.close(self._file)

    def type(self, command: str) -> str:
        """Return what is answered before the next prompt."""
        os.write(self._file, f"{command}\n".encode())
        return self._read()

    def _read(self) -> str:
        said, end = "", time.monotonic() + LONGEST_S
        while not said.endswith(PROMPT):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._file], [], [], left)[0]:
                raise TimeoutError(f"No prompt after {LONGEST_S} s. It said: {said}")
            said += os.read(self._file, 65_536).decode(errors="replace")
        return ESCAPES.sub("", said.removesuffix(PROMPT)).replace("\r\n", "\n")
