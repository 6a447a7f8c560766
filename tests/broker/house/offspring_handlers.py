"""Handlers that start processes of their own, in each way that Python knows."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import billiard

from tasks_app import TaskContext, handler


def double(number: int) -> int:
    return 2 * number


@handler("offspring", max_attempts=1)
def offspring(ctx: TaskContext, payload: dict[str, str]) -> list[int]:
    way = payload["way"]
    if way == "process":
        child: Any = multiprocessing.Process(target=double, args=(1,))
        child.start()
        child.join()
        return [child.exitcode]
    if way == "pool":
        with multiprocessing.Pool(2) as pool:
            return pool.map(double, [1, 2])
    if way == "spawned":
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            return pool.map(double, [1, 2])
    if way == "executor":
        with ProcessPoolExecutor(2) as executor:
            return list(executor.map(double, [1, 2]))
    if way == "billiard":
        child = billiard.Process(target=double, args=(1,))
        child.start()
        child.join()
        return [child.exitcode]
    if way == "billiard pool":
        with billiard.Pool(2) as pool:
            return list(pool.map(double, [1, 2]))
    return [int(subprocess.check_output([sys.executable, "-c", "print(2)"]))]
