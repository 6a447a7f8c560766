"""The buffer: written soon and once, or reported as lost; a killed process takes the rest along."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from dev.torture.fault_proxy import FaultProxy
from tasks_app import InvalidTaskError, TaskBuffer, TaskBufferFullError, TasksError
from tests.clock import until
from tests.environment import forbidden
from tests.runtime.bench import Bench
from tests.runtime.hints.ear import Ear, told
from tests.statements import once_after

LONG = "1h"
"""A buffer that does not write by time."""


def written(bench: Bench) -> list[int]:
    """What the payloads say that are in the pool."""
    return bench.sql("SELECT array_agg(payload['n']::int ORDER BY id) FROM task_pending") or []


def fill(buffer: TaskBuffer, numbers: range) -> None:
    for n in numbers:
        buffer.create_task("t", {"n": n})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskBuffer, "_pause_s", lambda _: 0.05)


@pytest.fixture
def proxy(bench: Bench) -> Iterator[FaultProxy]:
    with bench.proxy() as (proxy, _):
        yield proxy


@pytest.fixture
def far(bench: Bench, proxy: FaultProxy) -> Iterator[Engine]:
    """The database behind the proxy."""
    engine = create_engine(make_url(bench.url).set(port=proxy.port))
    yield engine
    engine.dispose()


class TestWhenItWrites:
    def test_when_there_are_enough(self, bench: Bench) -> None:
        with TaskBuffer(bench.engine, size=3, every=LONG) as buffer:
            fill(buffer, range(2))
            assert written(bench) == []
            fill(buffer, range(2, 4))
            until(lambda: written(bench) == [0, 1, 2])
            until(lambda: buffer.counts().waiting == 1)  # it counts behind its commit

    def test_when_the_first_has_waited_long_enough(self, bench: Bench) -> None:
        with TaskBuffer(bench.engine, every="10ms") as buffer:
            fill(buffer, range(2))
            until(lambda: written(bench) == [0, 1])
            fill(buffer, range(2, 3))
            until(lambda: written(bench) == [0, 1, 2])

    def test_when_it_is_closed(self, bench: Bench) -> None:
        with TaskBuffer(bench.engine, size=3, every=LONG) as buffer:
            fill(buffer, range(8))
        assert written(bench) == list(range(8))
        assert buffer.close()
        counts = buffer.counts()
        assert (counts.waiting, counts.written, counts.lost) == (0, 8, 0)

    def test_when_it_is_asked(self, bench: Bench) -> None:
        with TaskBuffer(bench.engine, size=3, every=LONG) as buffer:
            fill(buffer, range(4))
            assert buffer.flush()
            assert written(bench) == [0, 1, 2, 3]
            assert buffer.flush()

    def test_with_a_url_it_makes_its_own_connection(self, bench: Bench) -> None:
        with TaskBuffer(bench.url) as buffer:
            fill(buffer, range(1))
        assert written(bench) == [0]

    @pytest.mark.test_all
    def test_of_eight_threads_each_task_once(self, bench: Bench) -> None:
        buffer = TaskBuffer(bench.engine, size=7, capacity=50, every="1ms")
        with buffer, ThreadPoolExecutor(8) as threads:
            for k in range(8):
                threads.submit(fill, buffer, range(k, 800, 8))
        assert sorted(written(bench)) == list(range(800))

    @pytest.mark.test_all
    def test_at_the_end_of_the_program(self, bench: Bench) -> None:
        done = run(bench, "fill(range(5))")
        assert done.stderr == b""
        assert written(bench) == list(range(5))


class TestWhatItTakes:
    def test_a_bad_task_is_refused_at_once(self, bench: Bench) -> None:
        with TaskBuffer(bench.engine) as buffer:
            with pytest.raises(InvalidTaskError, match=r"payload\.x is nan"):
                buffer.create_task("t", {"x": float("nan")})
            with pytest.raises(InvalidTaskError, match=r"options\.eta is unknown"):
                buffer.create_task("t", eta=5)
        assert buffer.counts().written == 0

    def test_the_payload_as_it_is_now(self, bench: Bench) -> None:
        payload = {"n": 1}
        with TaskBuffer(bench.engine, every=LONG) as buffer:
            buffer.create_task("t", payload, queue="q", biz_key="b")
            payload["n"] = 2
        assert written(bench) == [1]

    def test_of_equal_unique_keys_the_first_and_it_cannot_say_which(self, bench: Bench) -> None:
        with TaskBuffer(bench.engine, every=LONG) as buffer:
            said = [buffer.create_task("t", {"n": n}, unique_key="k") for n in range(3)]
        assert said == [None] * 3
        assert written(bench) == [0]

    @pytest.mark.usefixtures("quick")
    def test_no_more_than_it_holds(self, bench: Bench, far: Engine, proxy: FaultProxy) -> None:
        proxy.refusing = True
        with TaskBuffer(far, size=1, capacity=3, block=0) as buffer:
            fill(buffer, range(3))
            with pytest.raises(TaskBufferFullError, match="3 tasks wait for the database"):
                fill(buffer, range(3, 4))
            proxy.refusing = False
            until(lambda: buffer.counts().waiting == 0)
            fill(buffer, range(4, 5))
        assert written(bench) == [0, 1, 2, 4]

    def test_a_full_buffer_makes_the_producer_wait(self, bench: Bench) -> None:
        with TaskBuffer(bench.engine, size=2, capacity=2, every=LONG, block="20s") as buffer:
            fill(buffer, range(20))
        assert written(bench) == list(range(20))

    def test_nothing_after_its_end(self, bench: Bench) -> None:
        with TaskBuffer(bench.engine) as buffer:
            pass
        with pytest.raises(TasksError, match="The buffer is closed"):
            fill(buffer, range(1))

    def test_no_async_engine_and_no_size_beyond_its_capacity(self, bench: Bench) -> None:
        with pytest.raises(TypeError, match="An AsyncEngine isn't an Engine"):
            TaskBuffer(create_async_engine(bench.url))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="size of a TaskBuffer"):
            TaskBuffer(bench.engine, size=10, capacity=9)

    def test_hints_go_out_after_its_commit(self, bench: Bench, ear: Ear) -> None:
        with TaskBuffer(bench.engine) as buffer:
            fill(buffer, range(3))
        assert len(told(ear)) == 3


@pytest.mark.usefixtures("quick")
class TestOutages:
    def test_it_tries_again_until_the_database_is_back(
        self, bench: Bench, far: Engine, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        with TaskBuffer(far, size=2, every="1ms") as buffer:
            fill(buffer, range(2))
            until(lambda: written(bench) == [0, 1])
            proxy.refusing = True
            proxy.cut()
            fill(buffer, range(2, 6))
            until(lambda: proxy.refused >= 3)
            proxy.refusing = False

        assert written(bench) == list(range(6))
        assert buffer.counts().lost == 0
        assert caplog.text.count("it tries again") == 1

    @pytest.mark.parametrize("lose", [FaultProxy.lose_reply_to, FaultProxy.lose_request])
    @pytest.mark.parametrize("what", [b"COMMIT", b"COPY"])
    def test_a_batch_whose_answer_is_lost_is_written_once(
        self, bench: Bench, far: Engine, proxy: FaultProxy, lose, what: bytes
    ) -> None:
        lose(proxy, what)
        with TaskBuffer(far, every="1ms") as buffer:
            fill(buffer, range(3))
            until(lambda: buffer.counts().written == 3)
        assert proxy.lost == 1
        assert sorted(written(bench)) == [0, 1, 2]

    def test_a_listener_that_fails_after_the_commit_repeats_no_write(self, bench: Bench) -> None:
        def fail(_session: Session) -> None:
            event.remove(Session, "after_commit", fail)
            raise ZeroDivisionError

        event.listen(Session, "after_commit", fail)
        with TaskBuffer(bench.engine, every="1ms") as buffer:
            fill(buffer, range(3))
        assert written(bench) == [0, 1, 2]
        assert buffer.counts().written == 3

    def test_when_its_patience_is_over_it_says_what_is_lost_and_goes_on(
        self, bench: Bench, far: Engine, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        lost: list[str] = []

        def note(rows, error: BaseException) -> None:
            lost.extend(row.payload for row in rows)
            raise ZeroDivisionError

        proxy.refusing = True
        with TaskBuffer(far, every="1ms", patience="10ms", on_lost=note) as buffer:
            fill(buffer, range(2))
            assert not buffer.flush()
            proxy.refusing = False
            fill(buffer, range(2, 3))

        assert lost == ['{"n":0}', '{"n":1}']
        assert (buffer.counts().lost, written(bench)) == (2, [2])
        told = re.findall(r"(\d) tasks of a buffer were lost \(OperationalError\): t", caplog.text)
        assert sum(map(int, told)) == 2  # in one batch or two, as its thread was faster or slower
        assert "on_lost of a buffer failed: ZeroDivisionError" in caplog.text
        assert '"n"' not in caplog.text

    def test_closing_does_not_wait_for_ever_and_loses_nothing_silently(
        self, far: Engine, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        proxy.refusing = True
        lost: list[str] = []
        buffer = TaskBuffer(
            far, size=2, every="1ms", on_lost=lambda rows, _: lost.extend(r.name for r in rows)
        )
        fill(buffer, range(5))
        until(lambda: proxy.refused >= 1)

        assert not buffer.close("10ms")

        until(lambda: buffer.counts().lost == 5)
        assert lost == ["t"] * 5
        assert "tasks of a buffer were lost" in caplog.text

    def test_a_refused_row_is_lost_alone(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        with (
            forbidden(bench.engine, "task_pending", "payload['n'] = '3'"),
            TaskBuffer(bench.engine, every=LONG) as buffer,
        ):
            fill(buffer, range(7))
        assert written(bench) == [0, 1, 2, 4, 5, 6]
        assert (buffer.counts().written, buffer.counts().lost) == (6, 1)
        assert "1 tasks of a buffer were lost (IntegrityError)" in caplog.text

    def test_errors_of_its_thread_are_told(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = bench.engine.execution_options()
        with TaskBuffer(engine, every=LONG) as buffer:
            fill(buffer, range(2))
            with once_after(engine, "nextval", sys.exit):
                assert not buffer.flush()
            fill(buffer, range(2, 3))
        assert (buffer.counts().lost, written(bench)) == (2, [2])
        assert "lost (SystemExit)" in caplog.text


PROGRAM = """
import json, os, signal, sys
from sqlalchemy import create_engine
from tasks_app import TaskBuffer

def fill(numbers):
    for n in numbers:
        buffer.create_task("t", {"n": n})

engine = create_engine(sys.argv[1])
buffer = TaskBuffer(engine, size=10, every="1h")
"""


def run(bench: Bench, code: str, expected: int = 0) -> subprocess.CompletedProcess[bytes]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TASKS_APP_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + code, bench.url],
        env=environment,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == expected, done.stderr
    return done


@pytest.mark.test_all
class TestProcesses:
    def test_a_killed_process_loses_the_unwritten_and_writes_none_twice(self, bench: Bench) -> None:
        run(
            bench,
            "fill(range(20)); buffer.flush(); fill(range(20, 25)); os.kill(os.getpid(), 9)",
            -signal.SIGKILL,
        )
        assert written(bench) == list(range(20))

    @pytest.mark.test_all
    def test_killed_at_any_moment_it_leaves_its_first_batches_whole(self, bench: Bench) -> None:
        code = """
import threading, time
def kill():
    while buffer.counts().written < 50 + os.getpid() % 50:
        time.sleep(0.001)
    os.kill(os.getpid(), 9)
threading.Thread(target=kill).start()
n = 0
while True:
    fill([n]); n += 1
"""
        for _ in range(3):
            bench.sql("TRUNCATE task_pending")
            run(bench, code, -signal.SIGKILL)

            found = written(bench)
            assert len(found) >= 50
            assert len(found) % 10 == 0
            assert found == list(range(len(found)))

    def test_a_forked_child_writes_its_own_and_not_its_parents(self, bench: Bench) -> None:
        code = """
fill(range(12)); buffer.flush(); fill(range(12, 15))
assert engine.pool.checkedin() == 1
if os.fork() == 0:
    assert engine.pool.checkedin() == 0     # that connection is the parent's
    assert buffer.counts().waiting == 0
    fill(range(100, 103))
    sys.exit()          # as a program ends
os.wait()
fill(range(15, 16))
print(json.dumps(buffer.close()))
"""
        done = run(bench, code)

        assert json.loads(done.stdout) is True
        assert sorted(written(bench)) == [*range(16), 100, 101, 102]

    def test_a_closed_one_stays_closed_in_a_forked_child(self, bench: Bench) -> None:
        code = """
from tasks_app import TasksError
buffer.close()
if os.fork() == 0:
    try:
        fill(range(1))
    except TasksError:
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
"""
        run(bench, code)

        assert written(bench) == []

    def test_a_fork_in_the_midst_of_another_threads_call_hangs_nobody(self, bench: Bench) -> None:
        code = """
with buffer._queue.changed:     # somebody is in there
    if os.fork() == 0:
        fill(range(100, 103))
        sys.exit()
    assert os.wait()[1] == 0
fill(range(3))
"""
        run(bench, code)
        assert sorted(written(bench)) == [0, 1, 2, 100, 101, 102]
