"""Fair queues: what is published and claimed, by shares of keys and floors of priorities."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app import NewTask, create_tasks
from tasks_app.domain.flow_control.admission import EVERY
from tasks_app.pool.dispatch import scan
from tasks_app.pool.flow_control.fair_queues import MOST_LINES, fair_queues
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_group
from tasks_app.runtime.api.limits import share_queue, unshare_queue
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.flow_control.admission import Fairness
from tasks_app.runtime.hint_sender import Message
from tasks_app.runtime.leader.dispatcher import Dispatcher
from tests.factory import claimer, do, ending, some
from tests.runtime.bench import Bench


@pytest.fixture
def line(engine: Engine, bench: Bench) -> Iterator[Line]:
    do(engine, scan.write_run_times, {"t": 0.02})
    line = Line(engine, bench)
    yield line
    line.close()


def work(line: Line, number: int) -> list[int]:
    while len(line.ran) < number:
        assert line.turn()
    return line.ran[:number]


@pytest.mark.test_all
def test_keys_share_a_queue_whoever_came_first(engine: Engine, line: Line) -> None:
    share(engine)
    whose = fill(engine, big=2_000) | fill(engine, small=100, other=100)
    went = Counter(whose[one] for one in work(line, 300))
    assert went == {"big": 100, "small": 100, "other": 100}


@pytest.mark.test_all
def test_without_shares_who_came_first_goes_first(engine: Engine, line: Line) -> None:
    whose = fill(engine, big=500) | fill(engine, small=100)
    assert {whose[one] for one in work(line, 300)} == {"big"}


@pytest.mark.test_all
def test_weights_are_shares(engine: Engine, line: Line) -> None:
    share(engine, gold=3)
    whose = fill(engine, iron=600, gold=600)
    went = Counter(whose[one] for one in work(line, 400))
    assert went["gold"] == pytest.approx(300, abs=3)


def test_what_one_leaves_the_others_have(engine: Engine, line: Line) -> None:
    share(engine, gold=1000)
    whose = fill(engine, gold=5, iron=200)
    assert Counter(whose[one] for one in work(line, 205)) == {"gold": 5, "iron": 200}


@pytest.mark.test_all
def test_who_comes_new_waits_for_the_line_and_no_longer(engine: Engine, line: Line) -> None:
    share(engine)
    whose = fill(engine, big=3_000)
    work(line, 500)
    done = len(line.ran)
    whose |= fill(engine, new=1)
    while "new" not in {whose[one] for one in line.turn()}:
        assert len(line.ran) - done <= 100
    assert line.longest <= 100


@pytest.mark.test_all
def test_each_priority_has_its_floor(engine: Engine, line: Line) -> None:
    share(engine)
    with engine.begin() as connection:
        urgent = create_tasks(
            connection, [NewTask("t", None, {"fair_key": "a", "priority": 0})] * 1_000
        )
        last = create_tasks(
            connection, [NewTask("t", None, {"fair_key": "a", "priority": 9})] * 1_000
        )

    went = work(line, 400)

    assert len(set(went) & set(map(int, last))) >= 400 // EVERY - 1
    assert len(set(went) & set(map(int, urgent))) >= 400 * 0.9


@pytest.mark.test_all
def test_floors_hold_for_tasks_without_a_key(engine: Engine, line: Line) -> None:
    share(engine)
    with engine.begin() as connection:
        create_tasks(connection, [NewTask("t", None, {"priority": 0})] * 1_000)
        last = create_tasks(connection, [NewTask("t", None, {"priority": 9})] * 100)
    assert len(set(work(line, 400)) & set(map(int, last))) >= 400 // EVERY - 1


def test_it_is_switched_off_again(engine: Engine, line: Line) -> None:
    share(engine)
    with engine.begin() as connection:
        assert unshare_queue(connection, QUEUE)
        assert not unshare_queue(connection, QUEUE)
        assert fair_queues(connection) == {}
    whose = fill(engine, big=500) | fill(engine, small=100)
    assert {whose[one] for one in work(line, 300)} == {"big"}


def test_a_retry_is_seen_while_its_message_is_out(engine: Engine, connection: Connection) -> None:
    fill(engine, a=1)
    share(engine)
    fairness = Fairness()
    fairness.among(connection, [QUEUE])
    row = connection.execute(
        text("SELECT id, date_part('epoch', scan_at) AS at FROM task_pending")
    ).one()

    hidden = fairness.due(connection, QUEUE, 9, {row.id: row.at + 1})
    seen = some(fairness.due(connection, QUEUE, 9, {row.id: row.at - 1}))

    assert hidden is None
    assert seen.ids == [row.id]


def test_two_who_claim_at_once_take_different_ones(engine: Engine) -> None:
    fill(engine, a=10, b=10)
    share(engine)
    taken = []
    with engine.connect() as one, engine.connect() as two:
        for connection in (one, two):
            fairness = Fairness()
            fairness.among(connection, [QUEUE])
            found = some(fairness.due(connection, QUEUE, 4, {}, names=["t"], lock=True))
            taken.append({t.task_id for t in claim(connection, found.ids, claimer(), uuid4())})
        one.rollback()
        two.rollback()

    assert [len(some) for some in taken] == [4, 4]
    assert not taken[0] & taken[1]


@pytest.mark.test_all
def test_more_keys_than_one_pass_reads_have_their_turn(engine: Engine) -> None:
    keys = [f"k{n:04}" for n in range(MOST_LINES + 100)]
    share(engine)
    seen: set[int] = set()
    with engine.begin() as connection:
        made = [NewTask("t", None, {"fair_key": key}) for key in keys * 3]
        whose = dict(zip(create_tasks(connection, made), keys * 3, strict=True))
        fairness = Fairness()
        fairness.among(connection, [QUEUE])
        for _ in range(5):
            found = fairness.due(connection, QUEUE, 600, dict.fromkeys(seen, inf))
            if found:  # the last keys have less, and the pass behind them begins at the first
                fairness.went(QUEUE, found.ids)
                seen.update(found.ids)

    assert {whose[one] for one in seen} == set(keys)


@pytest.mark.test_all
def test_work_without_a_broker_shares_too(engine: Engine, bench: Bench) -> None:
    order: list[str] = []
    bench.handler("t")(lambda ctx, payload: order.append(payload["key"]))
    with engine.begin() as connection:
        share_queue(connection, QUEUE, {})
        for key, number in (("big", 300), ("small", 10)):
            create_tasks(connection, [NewTask("t", {"key": key}, {"fair_key": key})] * number)
    bench.drain()
    assert len(order) == 310
    assert order[:60].count("small") == 10


def test_what_has_a_share_is_not_hinted() -> None:
    from tasks_app.domain.creation import validate_task
    from tasks_app.runtime.hints import is_near

    keyed = validate_task(NewTask("t", None, {"fair_key": "a"}), None, 100).terms
    plain = validate_task(NewTask("t"), None, 100).terms
    assert not is_near(keyed)
    assert is_near(plain)


QUEUE = "default"


class Line:
    """A broker's queue, and one worker that takes tasks out of it in their order."""

    def __init__(self, engine: Engine, bench: Bench, task_s: float = 0.0) -> None:
        self._engine = engine
        self._task_s = task_s
        self._database = Database(bench.url)
        settings = bench.settings()
        self._dispatcher = Dispatcher(settings, self._database, self)
        self._messages: list[Message] = []
        self.longest = 0
        self.ran: list[int] = []

    def publish(self, messages: Sequence[Message]) -> dict:
        self._messages += messages
        return {}

    def probe(self) -> None:
        pass

    def depths(self, queues: Sequence[str]) -> dict[str, int]:
        return {queue: sum(each.queue == queue for each in self._messages) for queue in queues}

    def turn(self) -> list[int]:
        """One pass of the scan, and one message of the worker; return what ran."""
        with self._engine.begin() as connection:
            heartbeats.write_heartbeat(
                connection, owner="w1", node="n", queues=[QUEUE], handlers=["t"]
            )
        self._dispatcher.run_once()
        self.longest = max(self.longest, sum(len(each.ids) for each in self._messages))
        if not self._messages:
            return []
        message = self._messages.pop(0)
        with self._engine.begin() as connection:
            taken = claim(connection, message.ids, claimer(), uuid4())
            settle_group(connection, [ending(task) for task in taken])
        time.sleep(self._task_s * len(taken))
        ran = [task.task_id for task in taken]
        self.ran += ran
        return ran

    def close(self) -> None:
        self._database.dispose()


def fill(engine: Engine, **keys: int) -> dict[int, str]:
    """Create so many tasks of each key; return whose is which."""
    whose: dict[int, str] = {}
    with engine.begin() as connection:
        for key, number in keys.items():
            ids = create_tasks(connection, [NewTask("t", None, {"fair_key": key})] * number)
            whose |= dict.fromkeys(map(int, ids), key)
    return whose


def share(engine: Engine, **weights: float) -> None:
    do(engine, share_queue, QUEUE, weights)
