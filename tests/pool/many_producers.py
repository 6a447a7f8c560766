"""Processes that create tasks of few keys as fast as they can, and what they were told."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
from sqlalchemy import Engine, text

from tasks_app import NewTask, TaskId, create_task, create_tasks
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.claim import claim_next
from tasks_app.pool.runs.settle import settle_group
from tests.factory import claimer, ending

BATCH = 10
LOOK_EVERY_S = 0.02
_PENDING_TWICE = text("""
    SELECT biz_key FROM task_pending WHERE state = 'PENDING' GROUP BY biz_key HAVING count(*) > 1
""")
_THERE_TWICE = text("SELECT biz_key FROM task_pending GROUP BY biz_key HAVING count(*) > 1")


class Load(NamedTuple):
    """What each process does."""

    scope: str
    policy: str
    creates: int
    keys: int


class Seen(NamedTuple):
    """What all of them were told of what they committed, and what was seen meanwhile."""

    outcomes: Counter[str]
    errors: Counter[str]
    twice: int


def produce(url: str, seed: int, load: Load) -> tuple[Counter[str], Counter[str]]:
    """One process: single creates and batches, a tenth of them rolled back."""
    dice, outcomes, errors = random.Random(seed), Counter[str](), Counter[str]()
    with psycopg.connect(url) as connection:
        done = 0
        while done < load.creates:
            number = BATCH if dice.random() < 0.05 else 1
            wanted = [str(dice.randrange(load.keys)) for _ in range(number)]
            done += number
            try:
                ids = _created(connection, wanted, load)
            except Exception as error:  # the policy's own, or one that leaks
                errors[type(error).__name__] += 1
                connection.rollback()
                continue
            if dice.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()
                outcomes.update(str(i.outcome) for i in ids)
    return outcomes, errors


def _created(connection: psycopg.Connection, wanted: list[str], load: Load) -> list[TaskId]:
    rules: Any = {"unique_scope": load.scope, "on_conflict": load.policy}
    new = [NewTask("t", None, {"unique_key": k, "biz_key": k, **rules}) for k in wanted]
    if len(new) == 1:
        return [create_task(connection, "t", **new[0].options)]
    return create_tasks(connection, new)


def all_of(engine: Engine, processes: int, load: Load, *, working: bool) -> Seen:
    """Let them all produce at once; ``working`` claims and settles meanwhile."""
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    look = _PENDING_TWICE if load.scope == "queued" else _THERE_TWICE
    outcomes, errors, twice = Counter[str](), Counter[str](), 0
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        ends = [pool.submit(produce, url, seed, load) for seed in range(processes)]
        while wait(ends, LOOK_EVERY_S).not_done:
            with engine.begin() as connection:
                twice += len(connection.execute(look).all())
            if working:
                work(engine.begin)
        for end in ends:
            told, raised = end.result()
            outcomes += told
            errors += raised
    return Seen(outcomes, errors, twice)


def work(begin: Callable[[], Any]) -> None:
    """Claim what is due and let it succeed."""
    with begin() as connection:
        tasks = claim_next(connection, ["default"], 20, claimer(), uuid4())
    with begin() as connection:
        settle_group(connection, [ending(task, Event.SUCCEED) for task in tasks])
