"""Strict order: ids of a key rise in the order of the commits, whoever produces."""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor, wait
from multiprocessing import get_context

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app import NewTask, create_task, create_tasks
from tests.pool.interleave import blocked, two

PROCESSES, CREATES, KEYS = 16, 40, 3
LOOK_EVERY_S = 0.002
VISIBLE = text("SELECT order_key, array_agg(id) FROM task_pending GROUP BY order_key")


def strict(connection: Connection, key: str = "k") -> int:
    return int(create_task(connection, "t", order_key=key, strict_order=True))


def test_the_second_producer_of_a_key_waits_for_the_first_ones_commit(engine: Engine) -> None:
    with two(engine) as (a, b):
        first = strict(a)

        waiting = blocked(engine, b, a, strict)
        a.commit()

        assert waiting.result() > first


def test_producers_of_other_keys_and_such_that_are_not_strict_wait_for_nobody(
    engine: Engine,
) -> None:
    with two(engine) as (a, b):
        strict(a)

        assert strict(b, "other")
        assert create_task(b, "t", order_key="k")


def test_many_are_locked_in_one_order_before_any_has_an_id(engine: Engine) -> None:
    options = [{"order_key": key, "strict_order": True} for key in ("x", "y", "z")]
    new = [NewTask("t", None, given) for given in options]  # type: ignore[arg-type]
    with two(engine) as (a, b):
        first = create_tasks(a, new)

        waiting = blocked(engine, b, a, lambda c: create_tasks(c, new[::-1]))
        a.commit()

        assert min(waiting.result()) > max(first)


def produce(url: str, seed: int, *, strict_order: bool) -> None:
    """One process: creates, thinks, and mostly commits."""
    dice = random.Random(seed)
    with psycopg.connect(url) as connection:
        for _ in range(CREATES):
            key = f"k{dice.randrange(KEYS)}"
            create_task(connection, "t", order_key=key, strict_order=strict_order)
            connection.execute("SELECT pg_sleep(%s)", [dice.random() * 0.004])
            connection.rollback() if dice.random() < 0.1 else connection.commit()


def late_ones(engine: Engine, *, strict_order: bool) -> int:
    """How many tasks became visible after one of their key with a higher id had been visible."""
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    seen: dict[str, set[int]] = {f"k{n}": set() for n in range(KEYS)}
    late = 0
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool, engine.connect() as watcher:
        ends = [pool.submit(produce, url, n, strict_order=strict_order) for n in range(PROCESSES)]
        over = False
        while not over:
            over = not wait(ends, LOOK_EVERY_S).not_done
            for key, ids in watcher.execute(VISIBLE).all():
                late += sum(1 for i in ids if i not in seen[key] and i < max(seen[key], default=0))
                seen[key].update(ids)
            watcher.rollback()
        for end in ends:
            end.result()
    assert sum(map(len, seen.values())) > PROCESSES * CREATES / 2
    return late


@pytest.mark.timeout(300)
@pytest.mark.test_all
def test_sixteen_producers_at_once_commit_in_the_order_of_their_ids(engine: Engine) -> None:
    assert late_ones(engine, strict_order=True) == 0


@pytest.mark.timeout(300)
@pytest.mark.test_all
def test_without_it_ids_become_visible_late_which_this_watcher_sees(engine: Engine) -> None:
    assert late_ones(engine, strict_order=False) > 0
