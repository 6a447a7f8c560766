"""Handlers that do what nobody should, and what must be recorded of each. ``KINDS`` is the table.

Workers import it for its handlers; tests import it for the table.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import ctypes
import json
import locale
import logging
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from celery.exceptions import WorkerShutdown, WorkerTerminate
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

HANG_S = 0.3
"""The hard limit of what hangs."""
DIED = "while only this task ran in it"
LIMIT = "killed at its hard limit"
STORED = "result cannot be stored"
LOST, ASKED, BROKEN_OFF = "connection lost", "interrupted", "broken off"


@dataclass(frozen=True)
class Kind:
    name: str
    function: Callable[..., Any]
    says: str
    """What the recorded error holds; empty: the task succeeds."""
    kills: bool
    """Whether the child has to be replaced."""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def task_name(self) -> str:
        return f"zoo.{self.name}"

    @property
    def charged(self) -> tuple[int, int]:
        return (0, 1) if self.says in (LOST, ASKED, BROKEN_OFF) else (int(bool(self.says)), 0)


KINDS: dict[str, Kind] = {}


def kind(says: str = "", *, kills: bool = False, **options: Any) -> Callable[..., Any]:
    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        kind = Kind(function.__name__, function, says, kills, options)
        KINDS[kind.task_name] = kind
        return function

    return enter


def _function(name: str, deed: Callable[[Any], Any]) -> Callable[[Any], None]:
    def function(ctx: Any) -> None:
        deed(ctx)

    function.__name__ = name
    return function


def one_line(says: str, deeds: dict[str, Callable[[Any], Any]], *, kills: bool = False) -> None:
    """Enter those that do one thing and return nothing."""
    for name, deed in deeds.items():
        kind(says, kills=kills)(_function(name, deed))


def _raise(error: BaseException) -> None:
    raise error


# -- what they raise


class OwnBaseError(BaseException):
    """Not even an Exception."""


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class UntraceableError(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")


RAISED: dict[str, tuple[str, Callable[[], BaseException]]] = {
    "memory_error": ("MemoryError", MemoryError),
    "system_exit": ("SystemExit", SystemExit),
    "sys_exit_3": ("SystemExit: 3", lambda: SystemExit(3)),
    "keyboard_interrupt": ("KeyboardInterrupt", KeyboardInterrupt),
    "generator_exit": ("GeneratorExit", GeneratorExit),
    "stop_iteration": ("StopIteration", StopIteration),
    "base_exception": ("OwnBaseError", OwnBaseError),
    "worker_shutdown": ("WorkerShutdown", lambda: WorkerShutdown(1)),
    "worker_terminate": ("WorkerTerminate", lambda: WorkerTerminate(1)),
    "unspeakable": ("UnspeakableError", UnspeakableError),
    "untraceable": ("UntraceableError", UntraceableError),
    "nul_in_message": ("a\ufffdb", lambda: ValueError("a\x00b")),
    "surrogate_in_message": ("lone ? surrogate", lambda: ValueError("lone \ud800 surrogate")),
    "message_of_100_mb": ("ValueError: xxx", lambda: ValueError("x" * 100_000_000)),
}
for _name, (_says, _error) in RAISED.items():
    kind(_says)(_function(_name, lambda ctx, error=_error: _raise(error())))


@kind("MemoryError")
def memory_limit(ctx: Any) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        now = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 50_000_000, before[1]))
    try:
        hoard = []
        while True:
            hoard.append(bytearray(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@kind("RecursionError")
def recursion(ctx: Any) -> None:
    recursion(ctx)


@kind("UnpicklableError")
def unpicklable(ctx: Any) -> None:
    class UnpicklableError(Exception):
        pass

    raise UnpicklableError(threading.Lock(), lambda: 0)


# -- what they return


class Callback(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise SystemExit("called back")


RETURNED: dict[str, Callable[[Any], Any]] = {
    "returns_nan": lambda ctx: float("nan"),
    "returns_set": lambda ctx: {1, 2},
    "returns_bytes": lambda ctx: b"bytes",
    "returns_100_mb": lambda ctx: "x" * 100_000_000,
    "returns_generator": lambda ctx: (n for n in range(3)),
    "returns_coroutine": lambda ctx: asyncio.sleep(0),
}
for _name, _returns in RETURNED.items():
    _returns.__name__ = _name
    kind(STORED)(_returns)


@kind(STORED)
def returns_cycle(ctx: Any) -> Any:
    ring: list[Any] = []
    ring.append(ring)
    return ring


@kind("called back")
def returns_callback(ctx: Any) -> Any:
    return Callback(a=1)


# -- what ends the process


one_line(
    DIED,
    {
        "exits_3": lambda ctx: os._exit(3),
        "exits_0": lambda ctx: os._exit(0),
        "null_pointer": lambda ctx: ctypes.string_at(0),
        "becomes_another_program": lambda ctx: os.execv("/bin/true", ["true"]),
        "closes_descriptors": lambda ctx: os.closerange(3, 4096),
    },
    kills=True,
)


def _sends(number: signal.Signals) -> Callable[[Any], None]:
    def send(ctx: Any) -> None:
        os.kill(os.getpid(), number)
        time.sleep(60)

    send.__name__ = number.name.lower()
    return send


for _number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGUSR2):
    kind(DIED, kills=True)(_sends(_number))


@kind(ASKED, kills=True)
def sigterm(ctx: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


@kind(DIED, kills=True)
def stack_overflow(ctx: Any) -> None:
    class Deep:
        def __repr__(self) -> str:
            return repr(self)

    sys.setrecursionlimit(10**8)
    repr(Deep())


# -- what hangs


def _hangs(**options: Any) -> Callable[..., Any]:
    return kind(LIMIT, kills=True, hard_timeout=HANG_S, **options)


@_hangs(timeout=0.1)
def hang(ctx: Any) -> None:
    while True:
        try:
            time.sleep(60)
        except BaseException:
            ctx.log.warning("not me")


@_hangs()
def hang_with_the_gil(ctx: Any) -> None:
    ctypes.PyDLL(None).usleep(60_000_000)


@_hangs()
def hang_stopped(ctx: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@_hangs()
def hang_as_another_program(ctx: Any) -> None:
    os.execv("/bin/sleep", ["sleep", "60"])


@_hangs(timeout=0.1)
async def async_hang(ctx: Any) -> None:
    while True:
        pass


@_hangs(timeout=0.1)
async def async_swallows_cancel(ctx: Any) -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


@_hangs()
def hang_in_the_result(ctx: Any) -> Any:
    class Endless(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            while True:
                time.sleep(0.01)

    return Endless([1])


@kind("HandlerTimeoutError", timeout=0.1)
def slow(ctx: Any) -> None:
    threading.Event().wait(60)


# -- async


@kind(BROKEN_OFF)
async def async_cancels_itself(ctx: Any) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


@kind("none may stop them")
async def async_stops_the_loop(ctx: Any) -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.2)
    os._exit(4)  # who resumes it, later, in somebody else's run?


@kind("SystemExit")
async def async_exits(ctx: Any) -> None:
    await asyncio.sleep(0)
    sys.exit(3)


@kind()
async def async_leaves_tasks(ctx: Any) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    ctx.left = [asyncio.create_task(never()) for _ in range(10)]


# -- forks


@kind()
def fork_returns(ctx: Any) -> Any:
    ctx.connection.execute(text("SELECT 1"))
    return {"forked": os.fork() == 0}


@kind("ours")
def fork_raises(ctx: Any) -> None:
    if os.fork() == 0:
        raise ValueError("forked")
    raise ValueError("ours")


@kind()
def fork_exits(ctx: Any) -> Any:
    ctx.connection.execute(text("SELECT 1"))
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    return {"forked": False}


@kind("must not be used")
def fork_uses_the_session(ctx: Any) -> None:
    ctx.session.execute(text("SELECT 1"))
    told, tell = os.pipe()
    if os.fork() == 0:
        try:
            ctx.session.execute(text("INSERT INTO effect VALUES (-1, 'forked')"))
        except Exception as error:
            os.write(tell, f"must not be used: {type(error).__name__}".encode())
        os._exit(0)
    os.close(tell)
    raise ValueError(os.read(told, 1000).decode())


@kind()
async def async_fork_returns(ctx: Any) -> Any:
    await asyncio.sleep(0)
    return {"forked": os.fork() == 0}


DAEMON_S = 20.0


def _daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(DAEMON_S)
        os._exit(0)
    os.wait()


@kind()
def daemon(ctx: Any) -> None:
    _daemon()


@kind(DIED, kills=True)
def daemon_and_exit(ctx: Any) -> None:
    ctx.session.execute(text("INSERT INTO effect VALUES (-2, 'locked')"))
    _daemon()
    os._exit(1)


# -- leaks

LEAKED: list[Any] = []


@kind()
def leaks_descriptors(ctx: Any) -> None:
    LEAKED.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(50))


@kind("Too many open files")
def exhausts_descriptors(ctx: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    while True:
        LEAKED.append(os.open("/dev/null", os.O_RDONLY))


@kind()
def leaks_threads(ctx: Any) -> None:
    for _ in range(5):
        threading.Thread(target=threading.Event().wait).start()


@kind()
def leaks_a_connection(ctx: Any) -> None:
    connection = ctx.session.get_bind().raw_connection()
    connection.detach()
    connection.cursor().execute("SELECT 1")
    LEAKED.append(connection)


# -- the process they share


one_line(
    "",
    {
        "leaks_memory": lambda ctx: LEAKED.append(bytearray(20_000_000)),
        "blocks_signals": lambda ctx: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM}),
        "changes_umask": lambda ctx: os.umask(0o777),
        "empties_the_environment": lambda ctx: os.environ.clear(),
        "changes_locale": lambda ctx: locale.setlocale(locale.LC_ALL, "C"),
        "default_timeout": lambda ctx: socket.setdefaulttimeout(0.000_001),
        "silences_logs": lambda ctx: logging.disable(logging.CRITICAL),
        "warnings_are_errors": lambda ctx: warnings.simplefilter("error"),
        "leads_its_own_session": lambda ctx: os.setsid(),
        "is_nice": lambda ctx: os.nice(1),
        "hangs_at_exit": lambda ctx: atexit.register(threading.Event().wait),
    },
)


@kind()
def replaces_signals(ctx: Any) -> None:
    for number in (signal.SIGALRM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


@kind()
def leaves_an_alarm(ctx: Any) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0.05)


@kind()
def loses_its_folder(ctx: Any) -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)  # noqa: PTH106


@kind()
def patches(ctx: Any) -> None:
    def no(*_: Any, **__: Any) -> None:
        raise ValueError("patched")

    socket.create_connection = json.load = random.random = no  # type: ignore[assignment]


@kind()
def tiny_recursion_limit(ctx: Any) -> None:
    for limit in range(10, 1000):
        try:
            sys.setrecursionlimit(limit)
        except RecursionError:
            continue
        return


@kind()
def closes_stdout(ctx: Any) -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        stream.close()  # type: ignore[union-attr]


class RaisingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("no log")


@kind()
def breaks_logs(ctx: Any) -> None:
    logging.disable(logging.NOTSET)
    logging.getLogger().addHandler(RaisingHandler())
    logging.getLogger("tasks_app").setLevel(logging.DEBUG)


@kind("profiled")
def raises_while_profiled(ctx: Any) -> None:
    def profile(*_: Any) -> None:
        raise ValueError("profiled")

    sys.setprofile(profile)


SEEN: contextvars.ContextVar[int] = contextvars.ContextVar("SEEN")


@kind()
def leaks_a_context(ctx: Any) -> None:
    SEEN.set(ctx.task_id)


# -- SQL


def _executes(statement: str) -> Callable[[Any], Any]:
    return lambda ctx: ctx.session.execute(text(statement))


one_line(
    "",
    {
        "sets_lock_timeout": _executes("SET lock_timeout = '7ms'"),
        "sets_search_path": _executes("SET search_path TO nowhere"),
        "sets_search_path_by_function": _executes(
            "SELECT set_config('search_path', 'public, nowhere', false)"
        ),
        "listens": _executes("LISTEN zoo"),
        "leaves_a_temporary_table": _executes("CREATE TEMP TABLE zoo_left (id int)"),
        "leaves_an_advisory_lock": _executes("SELECT pg_advisory_lock(4711)"),
    },
)


@kind("swallowed a database error")
def broken_transaction(ctx: Any) -> None:
    ctx.session.execute(text("CREATE TEMP TABLE zoo_once (id int PRIMARY KEY) ON COMMIT DROP"))
    with suppress(IntegrityError):
        ctx.session.execute(text("INSERT INTO zoo_once VALUES (1), (1)"))


@kind("The handler closed ctx.connection")
def closes_its_connection(ctx: Any) -> None:
    ctx.connection.execute(text("SELECT 1"))  # else there is nothing to lose
    ctx.connection.connection.driver_connection.close()


@kind(LOST)
def terminates_its_backend(ctx: Any) -> None:
    ctx.session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))


@kind("ReadOnlySqlTransaction")
def reads_only(ctx: Any) -> None:
    ctx.session.execute(text("SET TRANSACTION READ ONLY"))


@kind("commits together with the task")
def commits_by_text(ctx: Any) -> None:
    ctx.session.execute(text("INSERT INTO effect VALUES (-3, 'committed')"))
    ctx.session.execute(text(" /* now */ commit"))


@kind("commits together with the task")
def rolls_back_by_text(ctx: Any) -> None:
    ctx.session.execute(text("ROLLBACK"))


@kind()
def threads_use_the_session_later(ctx: Any) -> None:
    session = ctx.session
    session.execute(text("SELECT 1"))

    def later(touch: Callable[[], Any]) -> None:
        time.sleep(0.05)
        LEAKED.append(touch())

    for _ in range(10):
        threading.Thread(target=later, args=(session.connection,), daemon=True).start()
        threading.Thread(target=later, args=(lambda: ctx.connection,), daemon=True).start()
