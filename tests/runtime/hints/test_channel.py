"""Hints that go out from the thread that offers them, and the answers that another waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty

import pytest

from tasks_app.domain.errors import ConfigurationError
from tasks_app.runtime import hint_sender
from tasks_app.runtime.hint_sender import (
    MOST_AT_ONCE,
    DelayQueue,
    Hint,
    HintChannel,
    HintCounts,
    HintSender,
    Message,
)
from tests.clock import Clock, until


class Line:
    """A publisher that notes which thread used it for what."""

    def __init__(self) -> None:
        self.published: list[list[int]] = []
        self.started: list[list[int]] = []
        self.threads: set[int] = set()
        self.looks, self.depths = 0, 0
        self.can_start = True
        self.publish_error: Exception | None = None
        self.error: Exception | None = None
        """Of starts."""
        self.answer: Exception | None = None
        """Of what was started."""
        self.answered = threading.Event()
        self.answered.set()

    def publish(self, _queue: str, ids: Sequence[int]) -> None:
        if self.publish_error is not None:
            raise self.publish_error
        self.published.append(list(ids))

    def start(self, _queue: str, ids: Sequence[int]) -> bool:
        if self.error is not None:
            raise self.error
        if self.can_start:
            self.threads.add(threading.get_ident())
            self.started.append(list(ids))
        return self.can_start

    def finish(self) -> None:
        self.answered.wait(20)
        if self.answer is not None:
            raise self.answer

    def depth(self, _queue: str) -> int | None:
        self.looks += 1
        return self.depths


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.answered.set()


@pytest.fixture
def hinter(line: Line) -> HintSender:
    """One that has sent a first hint, by which it knows the broker and the queue."""
    hinter = HintSender(lambda: line)
    offer(hinter, 0)
    assert (line.published, line.started) == ([[0]], [])
    line.published.clear()
    return hinter


def offer(hinter: HintSender, *ids: int, queue: str = "q", at: float = 0.0) -> None:
    hinter.offer([Hint(queue, task_id, at) for task_id in ids])
    hinter.flush(20)


def test_they_go_out_from_the_thread_that_offers_them(hinter: HintSender, line: Line) -> None:
    offer(hinter, 1, 2)
    offer(hinter, 3)
    assert line.started == [[1, 2], [3]]
    assert line.threads == {threading.get_ident()}
    assert line.published == []
    assert hinter.counts == HintCounts(sent=4)


def test_what_is_not_answered_is_sent_again(hinter: HintSender, line: Line) -> None:
    line.answer = ConnectionError()
    offer(hinter, 1)
    assert line.started == line.published == [[1]]
    assert hinter.counts == HintCounts(sent=2)


def test_what_cannot_be_started_goes_the_other_way(hinter: HintSender, line: Line) -> None:
    line.error = ConnectionError()
    offer(hinter, 1)
    line.error, line.can_start = None, False
    offer(hinter, 2)
    assert line.started == []
    assert line.published == [[1], [2]]


def test_nobody_waits_for_an_answer_to_what_went_before(hinter: HintSender, line: Line) -> None:
    line.answered.clear()
    for n in range(1, 5):
        hinter.offer([Hint("q", n)])
    line.answered.set()
    hinter.flush(20)
    assert line.started == [[1]]
    assert [i for ids in line.published for i in ids] == [2, 3, 4]


def test_nothing_is_started_after_a_burst(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hint_sender, "WINDOW_S", 3600.0)
    hints = HintChannel(lambda: line, HintCounts())
    messages = [Message("q", [n]) for n in range(hint_sender.BURST + 1)]
    hints.send(messages)
    assert not hints.start(Message("q", [100]))
    assert line.started == []


def silent(line: Line, hinter: HintSender) -> None:
    line.publish_error = line.error = ConnectionError()
    offer(hinter, 1)
    line.publish_error = line.error = None


def deep(line: Line, hinter: HintSender) -> None:
    line.depths = hint_sender.DEEP
    for n in range(hint_sender.READ_DEPTH_EVERY):
        offer(hinter, n)
    line.depths = 0


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("state", "lasts_s"), [(silent, hint_sender.SILENCE_S), (deep, hint_sender.DEEP_SILENCE_S)]
)
def test_nothing_is_started_into_a_silence(
    line: Line, state: Callable[[Line, HintSender], None], lasts_s: float
) -> None:
    clock = Clock()
    hinter = HintSender(lambda: line, clock=clock)
    offer(hinter, 0)
    state(line, hinter)
    line.started.clear()

    clock.now += lasts_s - 0.1
    offer(hinter, 100)
    assert line.started == []

    clock.now += 0.2
    offer(hinter, 101)  # published: whether the broker takes it is not known
    offer(hinter, 102)
    assert line.started == [[102]]


@pytest.mark.test_all
def test_nothing_is_started_before_it_is_due(hinter: HintSender, line: Line) -> None:
    hinter.offer([Hint("q", 1, at=time.monotonic() + 3600)])
    assert line.started == []


def test_a_queue_is_looked_at_before_its_first_start(hinter: HintSender, line: Line) -> None:
    offer(hinter, 1, queue="other")
    offer(hinter, 2, queue="other")
    assert line.published == [[1]]
    assert line.started == [[2]]
    assert line.looks == 2


@pytest.mark.test_all
def test_starts_count_for_the_next_look_at_a_queue(hinter: HintSender, line: Line) -> None:
    line.depths = hint_sender.DEEP
    for n in range(1, 2 * hint_sender.READ_DEPTH_EVERY):
        offer(hinter, n)
    assert len(line.started) == hint_sender.READ_DEPTH_EVERY - 1
    assert hinter.counts.silent == hint_sender.READ_DEPTH_EVERY


def test_many_or_of_several_queues_go_the_other_way(hinter: HintSender, line: Line) -> None:
    offer(hinter, *range(MOST_AT_ONCE + 1))
    hinter.offer([Hint("q", 1000), Hint("other", 1001)])
    until(lambda: hinter.counts.sent == MOST_AT_ONCE + 4)
    assert line.started == []


def test_a_url_that_cannot_be_used_is_said_whole_and_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()

    def connect() -> Line:
        raise ConfigurationError("The URL in X asks Sentinel for no master. Put it in.")

    broken = HintChannel(connect, HintCounts(), clock=clock)
    for _ in range(3):
        broken.send([Message("mail", [1])])
        clock.now += hint_sender.LONGEST_SILENCE_S
    (said,) = [record.getMessage() for record in caplog.records]
    assert "(The URL in X asks Sentinel for no master. Put it in): tasks start at" in said


@pytest.mark.test_all
def test_what_may_come_out_does_so_in_the_order_of_its_instants() -> None:
    queue: DelayQueue[str] = DelayQueue()
    now = time.monotonic()
    queue.put("third", now + 0.10)
    queue.put("second", now + 0.05)
    queue.put("first")
    assert [queue.get() for _ in range(3)] == ["first", "second", "third"]
    assert time.monotonic() >= now + 0.10
    assert len(queue) == 0


@pytest.mark.test_all
def test_nothing_comes_out_early() -> None:
    queue: DelayQueue[str] = DelayQueue()
    queue.put("later", time.monotonic() + 3600)
    with pytest.raises(Empty):
        queue.get(wait=False)
    assert len(queue) == 1


@pytest.mark.test_all
def test_who_waits_for_a_later_one_gets_what_comes_in_before() -> None:
    queue: DelayQueue[str] = DelayQueue()
    queue.put("later", time.monotonic() + 3600)
    got: list[str] = []
    thread = threading.Thread(target=lambda: got.append(queue.get()), daemon=True)
    thread.start()
    queue.put("now")
    thread.join(10)
    assert got == ["now"]
