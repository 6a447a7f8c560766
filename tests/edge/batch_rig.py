"""What the long proofs of batch jobs need: a table of orders, a module of jobs, workers to kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Engine, text

from tasks_app.batch.control import get_job
from tasks_app.domain.batch.records import BatchView
from tests.broker.celery_process import LOGS
from tests.clock import until

JOBS = '''
import json, os, time
from sqlalchemy import text
from tasks_app import BatchJob, Step, Table
from tasks_app.batch.planners.even import Even

TOUCH = text("""
    UPDATE proof SET touched = touched + 1, note = 'done'
    WHERE id = ANY(CAST(:ids AS bigint[]))
""")
READ = os.environ.get("PROOF_READ")
PAUSE_S = float(os.environ.get("PROOF_PAUSE_S", "0"))

def touch(ctx, rows):
    """Told outside of the transaction which rows were read, so that no rollback takes it back."""
    if READ:
        line = json.dumps([ctx.partition_no, rows[0].id, rows[-1].id, len(rows)]) + "\\n"
        with open(READ, "a") as told:
            told.write(line)
    ctx.connection.execute(TOUCH, {"ids": "{%s}" % ",".join([str(row.id) for row in rows])})
    if PAUSE_S:
        time.sleep(PAUSE_S)

BatchJob("proof", [Step(
    "touch", Table("proof"), planner=Even(int(os.environ.get("PROOF_PARTS", "16"))), chunk=touch,
    commit_every=os.environ.get("PROOF_EVERY", "1000 rows or 1s"), retry="0s,0s", max_attempts=1000,
    on_abort=("retry_partition", 100),
)])
'''
FILL = """
    INSERT INTO proof (id, amount, note)
    SELECT i, i % 97, 'order ' || i FROM generate_series(1, :rows) AS i
"""


class Rig:
    """Orders, workers, and a look at how far they are."""

    def __init__(self, engine: Engine, url: str, folder: Path) -> None:
        self.engine = engine
        self.read = folder / "read.jsonl"
        self._folder = folder
        self._workers: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **os.environ,
            "TASKS_APP_DATABASE_URL": url,
            "TASKS_APP_IMPORTS": "proof_jobs",
            "TASKS_APP_LEASE": "3s",
            "TASKS_APP_SCAN_INTERVAL": "200ms",
            "PYTHONPATH": str(folder),
        }
        (folder / "proof_jobs.py").write_text(JOBS)
        LOGS[str(folder)] = folder / "log.txt"

    def table(self, rows: int, *, indexed: bool = False) -> None:
        """Fill the table anew; ``indexed``: what the job writes is in an index."""
        for statement in (
            "DROP TABLE IF EXISTS proof",
            """CREATE TABLE proof (id bigint PRIMARY KEY, amount int NOT NULL, note text NOT NULL,
                touched int NOT NULL DEFAULT 0) WITH (fillfactor = 50)""",
        ):
            self.sql(statement)
        if indexed:
            self.sql("CREATE INDEX proof_note ON proof (note)")
        self.sql(FILL, rows=rows)
        with self.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.exec_driver_sql("VACUUM ANALYZE proof")
            connection.exec_driver_sql("CHECKPOINT")  # or one comes in the middle of what is timed

    def sql(self, statement: str, **values: Any) -> Any:
        """Execute and commit; return the first row's first column."""
        with self.engine.begin() as connection:
            result = connection.execute(text(statement), values)
            return result.scalar() if result.returns_rows else None

    def set(self, **environment: str) -> None:
        """Say how the job is, to all that is started from here on."""
        self._environment.update(environment)

    def start(self) -> int:
        """Start the job; return the instance."""
        command = [sys.executable, "-m", "tasks_app", "batch", "start", "proof"]
        said = subprocess.run(
            command, env=self._environment, cwd=self._folder, capture_output=True, check=True
        )
        return int(said.stdout.split()[0])

    def worker(self) -> subprocess.Popen[bytes]:
        """Start a worker without a broker: a supervisor and a child."""
        with (self._folder / "log.txt").open("ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "tasks_app", "work"],
                env=self._environment,
                cwd=self._folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._workers.append(worker)
        return worker

    def kill(self, worker: subprocess.Popen[bytes], *, child_only: bool) -> None:
        """SIGKILL the child, which is replaced, or all of it."""
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if child_only:
                for child in psutil.Process(worker.pid).children(recursive=True):
                    child.kill()
            else:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()

    def memory(self) -> int:
        """Return the largest child's unshared memory in bytes."""
        sizes = [0]
        for worker in self._workers:
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(worker.pid).children(recursive=True)
                sizes += [child.memory_full_info().uss for child in children]
        return max(sizes)

    def view(self, batch_id: int) -> BatchView:
        with self.engine.connect() as connection:
            view = get_job(connection, batch_id)
        assert view is not None
        return view

    def over(self, batch_id: int, timeout_s: float = 900) -> BatchView:
        until(lambda: self.view(batch_id).batch.ended_at, timeout_s, "the end of the job")
        return self.view(batch_id)

    def took_s(self, batch_id: int) -> float:
        """Return how long its partitions took, from the first start to the last end."""
        return float(
            self.sql(
                "SELECT extract(epoch FROM max(ended_at) - min(started_at)) FROM task_partition"
                " WHERE batch_id = :id",
                id=batch_id,
            )
        )

    def end(self) -> None:
        LOGS.pop(str(self._folder), None)
        for worker in self._workers:
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        self.sql("DROP TABLE IF EXISTS proof")


def pause(seconds: float) -> None:
    ends = time.monotonic() + seconds
    until(lambda: time.monotonic() > ends, seconds + 5)
