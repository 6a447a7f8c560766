"""``python -m dev.benchmarks.flame``: where the time of a drain goes, as docs/drain-profile.svg.

Samples worker, children and beat with py-spy (``pip install py-spy``), draws the flames of one
child and of the processes around it, and prints what each tenth goes to.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from html import escape
from pathlib import Path

import psutil
from sqlalchemy import Engine, create_engine, text

from tasks_app import NewTask, create_tasks
from tasks_app.embedded.stack import Stack, temporary
from tasks_app.pool.flow_control.queue_settings import pause, resume
from tasks_app.pool.retention import add_partition, missing_partitions
from tasks_app.pool.schema import migrate

PICTURE = Path(__file__).parents[2] / "docs" / "drain-profile.svg"
RATE = 250
ASLEEP = ("wait (threading.py", "_recv (billiard", "poll (kombu/utils/eventio.py", "sleep")
"""Whoever is in there waits for work, not for an answer."""
ANSWER = "wait (psycopg"
WIDTH, ROW, SMALLEST = 1200, 16, 1.5

Stacks = Counter[tuple[str, ...]]


def sampled(path: Path) -> Stacks:
    """Read py-spy's output: one stack per line, without sleeping threads."""
    stacks: Stacks = Counter()
    for line in path.read_text().splitlines():
        frames, _, number = line.rpartition(" ")
        stack = tuple(frame.rpartition(":")[0] + ")" for frame in frames.split(";"))
        if not any(word in stack[-1] for word in ASLEEP):
            stacks[_own(stack)] += int(number)
    return stacks


def _own(stack: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out what is below our first frame: it is the same in every stack."""
    ours = (n for n, frame in enumerate(stack) if "tasks_app/" in frame)
    return stack[next(ours, max(0, len(stack) - 6)) :]


def picture(title: str, parts: dict[str, Stacks]) -> str:
    """Draw the parts above each other, each as wide as the whole."""
    drawn: list[str] = []
    top = 40
    for name, stacks in parts.items():
        total = sum(stacks.values())
        drawn.append(_label(0, top - 6, f"{name}: {total} samples at {RATE} a second"))
        depth = _draw(drawn, stacks, total, top)
        top += (depth + 3) * ROW
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" '
        'font-family="monospace" font-size="11">'
    )
    return "\n".join([head, _label(0, 14, title), *drawn, "</svg>", ""])


def _draw(drawn: list[str], stacks: Stacks, total: int, top: int) -> int:
    deepest = 0
    level: list[tuple[float, tuple[str, ...], Stacks]] = [(0.0, (), stacks)]
    while level:
        below: list[tuple[float, tuple[str, ...], Stacks]] = []
        for left, prefix, members in level:
            groups: dict[str, Stacks] = {}
            for stack, number in sorted(members.items()):
                if len(stack) > len(prefix):
                    groups.setdefault(stack[len(prefix)], Counter())[stack] += number
            at = left
            for frame, group in groups.items():
                width = sum(group.values()) / total * WIDTH
                if width >= SMALLEST:
                    share = f"{escape(frame)}: {sum(group.values()) / total:.1%}"
                    drawn.append(_box(at, top + len(prefix) * ROW, width, frame, share))
                    below.append((at, (*prefix, frame), group))
                    deepest = max(deepest, len(prefix))
                at += width
        level = below
    return deepest


def _box(left: float, top: int, width: float, frame: str, title: str) -> str:
    colour = "#8fb8de" if ANSWER in frame else "#f0a35e" if "tasks_app/" in frame else "#e8d7b0"
    shown = escape(frame[: int(width / 6.7)]) if width > 30 else ""
    return (
        f'<g><title>{title}</title><rect x="{left:.1f}" y="{top}" width="{width:.1f}" '
        f'height="{ROW - 1}" fill="{colour}"/><text x="{left + 2:.1f}" y="{top + 11}">'
        f"{shown}</text></g>"
    )


def _label(left: int, top: int, words: str) -> str:
    return f'<text x="{left}" y="{top}" font-weight="bold">{escape(words)}</text>'


def shares(stacks: Stacks, most: int = 40) -> list[tuple[float, str]]:
    """Return the share of samples with each of our frames, and with the wait for replies."""
    total = sum(stacks.values()) or 1
    within: Counter[str] = Counter()
    for stack, number in stacks.items():
        for frame in {f for f in stack if "tasks_app/" in f or ANSWER in f}:
            within[frame] += number
    return [(number / total, frame) for frame, number in within.most_common(most)]


class Drain:
    """A worker and beat on servers of their own."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.engine: Engine = create_engine(stack.urls.database)
        with self.engine.begin() as connection:
            migrate(connection)
            days = missing_partitions(connection)
        for day in days:
            with self.engine.begin() as connection:
                add_partition(connection, day)
        self._environment = {
            **os.environ,
            "TASKS_APP_DATABASE_URL": stack.urls.database,
            "TASKS_APP_BROKER_URL": stack.urls.broker,
            "TASKS_APP_IMPORTS": "dev.benchmarks.flame_handlers",
            "TASKS_APP_RUN_DIR": str(folder),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        self._folder = folder
        self.beat = self._start("beat", "--pidfile=")
        self.worker = self._start("worker", "-c", "2")

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        program = Path(sys.executable).with_name("celery")
        return subprocess.Popen(
            [program, "-A", "tasks_app", *arguments],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def count(self, source: str) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text(f"SELECT count(*) FROM {source}")).scalar_one())

    def hold(self) -> None:
        with self.engine.begin() as connection:
            pause(connection, "default")

    def let_go(self) -> None:
        with self.engine.begin() as connection:
            resume(connection, "default")

    def create(self, number: int) -> None:
        with self.engine.begin() as connection:
            create_tasks(connection, [NewTask("noop")] * number)

    def wait(self, source: str, number: int) -> None:
        """Wait until a table has this many rows."""
        while self.count(source) != number:
            time.sleep(0.05)

    def cpu_s(self) -> dict[str, float]:
        """Return what all processes have used, the database's backends together."""
        worker = psutil.Process(self.worker.pid)
        with self.engine.connect() as connection:
            rows = connection.execute(text("SELECT pid FROM pg_stat_activity")).scalars()
            backends = [psutil.Process(pid) for pid in rows]
        groups = {
            "children": worker.children(),
            "database": backends,
            "beat": [psutil.Process(self.beat.pid)],
            "worker's parent": [worker],
        }
        return {
            name: sum(p.cpu_times().user + p.cpu_times().system for p in group)
            for name, group in groups.items()
        }

    def end(self) -> None:
        """Stop both."""
        for process in (self.worker, self.beat):
            process.terminate()
        for process in (self.worker, self.beat):
            process.wait()
        self.engine.dispose()


def profile(number: int, folder: Path) -> dict[str, Stacks]:
    """Drain this many tasks under the sampler."""
    sampler = os.environ.get("PY_SPY") or shutil.which("py-spy")
    if sampler is None:
        raise SystemExit("py-spy is missing. Run: pip install py-spy")
    with temporary() as stack:
        drain = Drain(stack, folder)
        try:
            drain.wait("task_worker", 2)
            drain.create(2_000)  # now it is known how fast they are
            drain.wait("task_pending", 0)
            drain.hold()
            drain.create(number)
            child = psutil.Process(drain.worker.pid).children()[0].pid
            pids = {"one child": child, "worker's parent": drain.worker.pid, "beat": drain.beat.pid}
            command = [sampler, "record", "-r", str(RATE), "-d", "600", "-f", "raw", "-o"]
            samplers = [
                subprocess.Popen(
                    [*command, folder / name, "-p", str(pid)],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                for name, pid in pids.items()
            ]
            time.sleep(1)
            drain.let_go()
            before, began = drain.cpu_s(), time.monotonic()
            drain.wait("task_pending", 0)
            took, after = time.monotonic() - began, drain.cpu_s()
            spent = {name: after[name] - before[name] for name in after}
            print(f"{number / took:,.0f} tasks/s under the sampler; CPU of each:")
            for name, seconds in spent.items():
                each_us = seconds / number * 1e6
                print(f"  {seconds / sum(spent.values()):6.1%}  {name}: {each_us:.1f} us a task")
            for each in samplers:
                each.send_signal(signal.SIGINT)
            for each in samplers:
                each.wait()
        finally:
            drain.end()
        return {name: sampled(folder / name) for name in pids}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.flame", description=__doc__)
    parser.add_argument("--n", type=int, default=200_000)
    number = parser.parse_args().n
    with tempfile.TemporaryDirectory() as folder:
        parts = profile(number, Path(folder))
    PICTURE.write_text(picture(f"A drain of {number:,} no-op tasks, by time awake", parts))
    for name, stacks in parts.items():
        print(f"\n{name}")
        for share, frame in shares(stacks):
            print(f"  {share:6.1%}  {frame}")


if __name__ == "__main__":
    main()
