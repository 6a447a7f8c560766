"""Workers without a broker that are killed at random, and when each of their runs took place."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.broker.celery_process import HOUSE, LOGS

NOTHING: Mapping[str, str] = {}


class Run(NamedTuple):
    """One run of one task; a killed one ended when its process was gone."""

    began: int
    ended: int
    task_id: int
    key: str


class Workers:
    """So many of ``tasks-app work``, each with a parent that replaces its child."""

    def __init__(
        self,
        url: str,
        folder: Path,
        number: int,
        threads: int = 1,
        imports: str = "gate_handlers",
        more: Mapping[str, str] = NOTHING,
    ) -> None:
        self.log = folder / "runs"
        self.killed: dict[int, int] = {}
        self._folder = folder
        self._errors = (folder / "stderr").open("wb")
        LOGS[self._errors.name] = folder / "stderr"
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("TASKS_APP_")},
            "TASKS_APP_DATABASE_URL": url,
            "TASKS_APP_IMPORTS": imports,
            "TASKS_APP_LEASE": "20s",
            "GATE_LOG": str(self.log),
            "PYTHONPATH": str(HOUSE),
            **more,
        }
        command = [
            sys.executable,
            "-m",
            "tasks_app",
            "work",
            "--concurrency=1",
            f"--threads={threads}",
        ]
        self._parents = [
            subprocess.Popen(command, env=environment, stderr=self._errors) for _ in range(number)
        ]

    def kill_one(self, dice: random.Random) -> None:
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(dice.choice(self._parents).pid).children()
            for child in children:
                child.kill()
                while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                    time.sleep(0.001)
                self.killed[child.pid] = time.time_ns()

    def begun(self) -> int:
        return self.log.read_bytes().count(b"begin") if self.log.exists() else 0

    @contextmanager
    def kills(self, every: int, progress: Callable[[], int] | None = None) -> Iterator[None]:
        """Kill one after each so many runs, meanwhile: by a clock, a slow machine gets nowhere."""
        over, dice, count = threading.Event(), random.Random(7), progress or self.begun

        def work() -> None:
            seen = count()
            while not over.wait(dice.uniform(0.0, 0.1)):
                if (now := count()) >= seen + every:
                    seen = now
                    self.kill_one(dice)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def stop(self) -> None:
        for parent in self._parents:
            parent.terminate()
        for parent in self._parents:
            parent.wait(60)
        self._errors.close()
        LOGS.pop(self._errors.name, None)

    def runs(self) -> list[Run]:
        """Return all runs; what runs still has not ended."""
        open_ones: dict[tuple[int, int], tuple[int, str]] = {}
        runs: list[Run] = []
        for line in self.log.read_text().splitlines():
            word, at, pid, task_id, key = line.split(" ", 4)
            if word == "begin":
                open_ones[int(pid), int(task_id)] = int(at), key
            else:
                began, _ = open_ones.pop((int(pid), int(task_id)))
                runs.append(Run(began, int(at), int(task_id), key))
        runs += [
            Run(began, self.killed.get(pid, time.time_ns()), task_id, key)
            for (pid, task_id), (began, key) in open_ones.items()
        ]
        return sorted(runs)


def overlaps(runs: list[Run]) -> int:
    """How many runs of one key began before the one before them had ended."""
    of_key: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        of_key[run.key].append(run)
    return sum(
        later.began < earlier.ended for some in of_key.values() for earlier, later in pairwise(some)
    )


def most_at_once(runs: list[Run]) -> int:
    moments = sorted([(run.began, 1) for run in runs] + [(run.ended, -1) for run in runs])
    inside = most = 0
    for _, change in moments:
        inside += change
        most = max(most, inside)
    return most
