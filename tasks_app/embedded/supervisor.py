"""The process that owns the servers: it restarts the dead ones until it is told to stop."""

from __future__ import annotations

import logging
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tasks_app.embedded.errors import EmbeddedError
from tasks_app.embedded.home import DEFAULT_FOLDER
from tasks_app.embedded.stack import Stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOOK_EVERY_S = 0.2
LONGEST_PAUSE_S = 10.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

logger = logging.getLogger(__name__)


def supervise(
    folder: Path | str = DEFAULT_FOLDER,
    *,
    persist: bool = True,
    on_up: Callable[[Stack], None] | None = None,
) -> None:
    """Run both servers in the foreground until SIGTERM, SIGINT or SIGHUP.

    Call it from the main thread: signals arrive there, and the servers die with it even if this
    process is killed (Linux). ``on_up`` is called once, when both answer.
    """
    stack = Stack(folder, persist=persist, supervised=True)
    with _told_to_stop() as told:
        stack.up(lambda started: logger.info("%s", started))
        try:
            if on_up is not None:
                on_up(stack)
            pause = LOOK_EVERY_S
            while not told.wait(pause):
                pause = _look(stack, pause)
        finally:
            stack.down()
            logger.info("stopped")


def _look(stack: Stack, pause: float) -> float:
    """Restart dead servers; return the seconds to wait, doubled after each failure."""
    try:
        for started in stack.heal():
            logger.warning("%s had died and was started again", started.name)
    except EmbeddedError as error:
        logger.error("%s", error)  # noqa: TRY400  the message is enough
        return min(2 * pause, LONGEST_PAUSE_S)
    return LOOK_EVERY_S


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    told = threading.Event()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, lambda *_: told.set())
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
