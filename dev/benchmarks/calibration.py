"""The speed of this machine now: CPU time of a fixed piece of work, on all cores at once.

At once, because cores that share their silicon are slower together, as they are in a drain.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from dev.benchmarks.environments import PROJECT

TURNS = 40_000


def calibrate() -> float:
    """Return the CPU milliseconds of the work, the mean over all cores."""
    command = [sys.executable, "-m", "dev.benchmarks.calibration"]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT)
        for _ in range(os.cpu_count() or 1)
    ]
    spans = [float(process.communicate()[0]) for process in processes]
    return sum(spans) / len(spans)


def work() -> float:
    """Do the work, which is like that of a worker; return its CPU milliseconds."""
    began = time.process_time()
    for i in range(TURNS):
        text = json.dumps({"id": i, "name": "points.grant", "payload": {"order": i}})
        value = json.loads(text)
        value["payload"]["order"] += 1
    return (time.process_time() - began) * 1e3


if __name__ == "__main__":
    print(work())
