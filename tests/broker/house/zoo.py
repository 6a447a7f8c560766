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
    """One kind of hostile handler."""

    name: str
    function: Callable[..., Any]
    says: str
    """What the recorded error holds; empty: the task succeeds."""
    kills: bool
    """Whether the child has to be replaced."""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def task_name(self) -> str:
        """What its tasks are called."""
        return f"zoo.{self.name}"

    @property
    def charged(self) -> tuple[int, int]:
        """How many failures and crashes its tasks have in the end."""
        return (0, 1) if self.says in (LOST, ASKED, BROKEN_OFF) else (int(bool(self.says)), 0)


KINDS: dict[str, Kind] = {}


def kind(says: str = "", *, kills: bool = False, **options: Any) -> Callable[..., Any]:
    """Enter a function in the table under its own name."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        kind = Kind(function.__name__, function, says, kills, options)
        KINDS[kind.task_name] = kind
        return function

    return enter


# -- what they raise


class OwnBaseError(BaseException):
    """Not even an Exception."""


class UnspeakableError(Exception):
    """Neither ``str`` nor ``repr`` can be had."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class UntraceableError(Exception):
    """Asked for its traceback, it raises."""

    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")


@kind("MemoryError")
def memory_error(ctx: Any) -> None:
    raise MemoryError


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


@kind("SystemExit")
def system_exit(ctx: Any) -> None:
    raise SystemExit


@kind("SystemExit: 3")
def sys_exit_3(ctx: Any) -> None:
    sys.exit(3)


@kind("KeyboardInterrupt")
def keyboard_interrupt(ctx: Any) -> None:
    raise KeyboardInterrupt


@kind("GeneratorExit")
def generator_exit(ctx: Any) -> None:
    raise GeneratorExit


@kind("StopIteration")
def stop_iteration(ctx: Any) -> None:
    raise StopIteration


@kind("OwnBaseError")
def base_exception(ctx: Any) -> None:
    raise OwnBaseError


@kind("WorkerShutdown")
def worker_shutdown(ctx: Any) -> None:
    raise WorkerShutdown(1)


@kind("WorkerTerminate")
def worker_terminate(ctx: Any) -> None:
    raise WorkerTerminate(1)


@kind("RecursionError")
def recursion(ctx: Any) -> None:
    recursion(ctx)


@kind("UnpicklableError")
def unpicklable(ctx: Any) -> None:
    class UnpicklableError(Exception):
        pass

    raise UnpicklableError(threading.Lock(), lambda: 0)


@kind("UnspeakableError")
def unspeakable(ctx: Any) -> None:
    raise UnspeakableError


@kind("UntraceableError")
def untraceable(ctx: Any) -> None:
    raise UntraceableError


@kind("a\ufffdb")
def nul_in_message(ctx: Any) -> None:
    raise ValueError("a\x00b")


@kind("lone ? surrogate")
def surrogate_in_message(ctx: Any) -> None:
    raise ValueError("lone \ud800 surrogate")


@kind("ValueError: xxx")
def message_of_100_mb(ctx: Any) -> None:
    raise ValueError("x" * 100_000_000)


# -- what they return


class Callback(dict):  # type: ignore[type-arg]
    """Calls back when it is written as JSON."""

    def items(self) -> Any:
        raise SystemExit("called back")


@kind(STORED)
def returns_nan(ctx: Any) -> Any:
    return float("nan")


@kind(STORED)
def returns_set(ctx: Any) -> Any:
    return {1, 2}


@kind(STORED)
def returns_bytes(ctx: Any) -> Any:
    return b"bytes"


@kind(STORED)
def returns_100_mb(ctx: Any) -> Any:
    return "x" * 100_000_000


@kind(STORED)
def returns_cycle(ctx: Any) -> Any:
    ring: list[Any] = []
    ring.append(ring)
    return ring


@kind("called back")
def returns_callback(ctx: Any) -> Any:
    return Callback(a=1)


@kind(STORED)
def returns_generator(ctx: Any) -> Any:
    return (n for n in range(3))


@kind(STORED)
def returns_coroutine(ctx: Any) -> Any:
    return asyncio.sleep(0)


# -- what ends the process


@kind(DIED, kills=True)
def exits_3(ctx: Any) -> None:
    os._exit(3)


@kind(DIED, kills=True)
def exits_0(ctx: Any) -> None:
    os._exit(0)


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
def null_pointer(ctx: Any) -> None:
    ctypes.string_at(0)


@kind(DIED, kills=True)
def stack_overflow(ctx: Any) -> None:
    class Deep:
        def __repr__(self) -> str:
            return repr(self)

    sys.setrecursionlimit(10**8)
    repr(Deep())


@kind(DIED, kills=True)
def becomes_another_program(ctx: Any) -> None:
    os.execv("/bin/true", ["true"])


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
    """Leave a process behind that holds all descriptors."""
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
def leaks_memory(ctx: Any) -> None:
    LEAKED.append(bytearray(20_000_000))


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


@kind()
def replaces_signals(ctx: Any) -> None:
    for number in (signal.SIGALRM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


@kind()
def blocks_signals(ctx: Any) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})


@kind()
def leaves_an_alarm(ctx: Any) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0.05)


@kind(DIED, kills=True)
def closes_descriptors(ctx: Any) -> None:
    os.closerange(3, 4096)


@kind()
def loses_its_folder(ctx: Any) -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)  # noqa: PTH106


@kind()
def changes_umask(ctx: Any) -> None:
    os.umask(0o777)


@kind()
def empties_the_environment(ctx: Any) -> None:
    os.environ.clear()


@kind()
def changes_locale(ctx: Any) -> None:
    locale.setlocale(locale.LC_ALL, "C")


@kind()
def patches(ctx: Any) -> None:
    def no(*_: Any, **__: Any) -> None:
        raise ValueError("patched")

    socket.create_connection = json.load = random.random = no  # type: ignore[assignment]


@kind()
def default_timeout(ctx: Any) -> None:
    socket.setdefaulttimeout(0.000_001)


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


@kind()
def silences_logs(ctx: Any) -> None:
    logging.disable(logging.CRITICAL)


class RaisingHandler(logging.Handler):
    """Raises whenever something is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("no log")


@kind()
def breaks_logs(ctx: Any) -> None:
    logging.disable(logging.NOTSET)
    logging.getLogger().addHandler(RaisingHandler())
    logging.getLogger("tasks_app").setLevel(logging.DEBUG)


@kind()
def warnings_are_errors(ctx: Any) -> None:
    warnings.simplefilter("error")


@kind()
def leads_its_own_session(ctx: Any) -> None:
    os.setsid()


@kind()
def is_nice(ctx: Any) -> None:
    os.nice(1)


@kind()
def hangs_at_exit(ctx: Any) -> None:
    atexit.register(threading.Event().wait)


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


@kind()
def sets_lock_timeout(ctx: Any) -> None:
    ctx.session.execute(text("SET lock_timeout = '7ms'"))


@kind()
def sets_search_path(ctx: Any) -> None:
    ctx.session.execute(text("SET search_path TO nowhere"))


@kind()
def sets_search_path_by_function(ctx: Any) -> None:
    ctx.session.execute(text("SELECT set_config('search_path', 'public, nowhere', false)"))


@kind("ReadOnlySqlTransaction")
def reads_only(ctx: Any) -> None:
    ctx.session.execute(text("SET TRANSACTION READ ONLY"))


@kind()
def listens(ctx: Any) -> None:
    ctx.session.execute(text("LISTEN zoo"))


@kind()
def leaves_a_temporary_table(ctx: Any) -> None:
    ctx.session.execute(text("CREATE TEMP TABLE zoo_left (id int)"))


@kind()
def leaves_an_advisory_lock(ctx: Any) -> None:
    ctx.session.execute(text("SELECT pg_advisory_lock(4711)"))


@kind("commits together with the task")
def commits_by_text(ctx: Any) -> None:
    ctx.session.execute(text("INSERT INTO effect VALUES (-3, 'committed')"))
    ctx.session.execute(text(" /* now */ commit"))


@kind("commits together with the task")
def rolls_back_by_text(ctx: Any) -> None:
    ctx.session.execute(text("ROLLBACK"))


@kind()
def threads_use_the_session_later(ctx: Any) -> None:
    """More of them than the pool has connections."""
    session = ctx.session
    session.execute(text("SELECT 1"))

    def later(touch: Callable[[], Any]) -> None:
        time.sleep(0.05)
        LEAKED.append(touch())

    for _ in range(10):
        threading.Thread(target=later, args=(session.connection,), daemon=True).start()
        threading.Thread(target=later, args=(lambda: ctx.connection,), daemon=True).start()
