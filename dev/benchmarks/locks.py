"""How often a lock that many want changes hands, and at what CPU, for docs/locks.md.

All want one resource, hold it for no time, and ask again. Each grant is checked through shared
memory: nobody else is inside, and the fence has risen. ``--beside`` measures another checkout by
turns. ``synchronous_commit`` is on.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from sqlalchemy import create_engine, text

from dev.benchmarks.audit import AuditError
from dev.benchmarks.scale import fresh_database
from tasks_app import locks
from tasks_app.embedded.stack import temporary
from tasks_app.pool.schema import migrate
from tasks_app.runtime.db.database import Database

RESOURCE = "the one"
WARM = 50
"""Grants before the clock starts."""
SHAPES = {"1 process, 8 threads": (1, 8), "4 processes, 1 thread": (4, 1)}
PLACE = struct.Struct("qqq")
"""Who is inside, the last fence, and how often a rule was broken."""
_GRANTS = text("SELECT coalesce(sum(grants), 0)::int FROM task_lock")


class Trace:
    """What all processes see of each grant."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), PLACE.size)

    def pass_through(self, fence: int) -> None:
        """Go in and out again."""
        me = threading.get_native_id()
        inside, last, faults = PLACE.unpack_from(self._map)
        faults += inside != 0 or fence <= last
        PLACE.pack_into(self._map, 0, me, fence, faults)
        inside, last, faults = PLACE.unpack_from(self._map)
        PLACE.pack_into(self._map, 0, 0, fence, faults + ((inside, last) != (me, fence)))

    @property
    def faults(self) -> int:
        """How often two were inside, or a fence was lower than one before."""
        return int(PLACE.unpack_from(self._map)[2])


def _contend(url: str, trace: Trace, threads: int) -> None:
    engine = create_engine(url, pool_size=threads + 1)

    def work() -> None:
        while True:
            with locks.hold(engine, exclusive=RESOURCE, wait="60s") as lock:
                trace.pass_through(lock.fence)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _granted(database: Database) -> int:
    with database.begin() as connection:
        return int(connection.execute(_GRANTS).scalar_one())


def _cpu_s(processes: Sequence[subprocess.Popen[bytes]]) -> float:
    stats = [Path(f"/proc/{each.pid}/stat").read_text() for each in processes]
    ticks = [int(t) for each in stats for t in each.rpartition(")")[2].split()[11:13]]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def measure(
    database: Database, tree: str, shape: tuple[int, int], seconds: float
) -> tuple[float, float]:
    """Return grants a second, and the contenders' milliseconds of CPU for each."""
    url = database.engine.url.render_as_string(hide_password=False)
    with database.begin() as connection:
        migrate(connection)
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(PLACE.size))
        file.flush()
        me = (sys.executable, __file__, "--contend", url, file.name, str(shape[1]))
        environment = {**os.environ, "PYTHONPATH": tree}
        running = [subprocess.Popen(me, env=environment, cwd=tree) for _ in range(shape[0])]
        try:
            while _granted(database) < WARM * shape[0] * shape[1]:
                time.sleep(0.1)
            before, used_s, began = _granted(database), _cpu_s(running), time.monotonic()
            time.sleep(seconds)
            grants, used_s = _granted(database) - before, _cpu_s(running) - used_s
            rate = grants / (time.monotonic() - began)
        finally:
            for process in running:
                process.kill()
                process.wait()
        if Trace(file.name).faults:
            raise AuditError(f"{Trace(file.name).faults} rules were broken.")
    return rate, 1000 * used_s / max(grants, 1)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.locks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="of each run (5)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--beside", metavar="FOLDER", help="another checkout")
    parser.add_argument("--contend", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        url, trace, threads = options.contend
        return _contend(url, Trace(trace), int(threads))
    trees = [str(Path(__file__).parents[2]), *([options.beside] if options.beside else [])]
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with temporary(persist=True) as stack:
        turns = product(range(options.rounds), SHAPES, trees)
        for number, (_, shape, tree) in enumerate(turns):
            with fresh_database(stack.postgres.url, f"locks_{number}") as database:
                seen = measure(database, tree, SHAPES[shape], options.seconds)
            found.setdefault((shape, tree), []).append(seen)
            print(f"{shape:22} {tree:30} {seen[0]:6.0f} grants/s {seen[1]:6.2f} ms", flush=True)
    for (shape, tree), runs in found.items():
        rate, cpu_ms = (statistics.median(each) for each in zip(*runs, strict=True))
        print(f"{shape:22} {tree:30} {rate:6.0f} grants/s {cpu_ms:6.2f} ms (medians)")
    return None


if __name__ == "__main__":
    main()
