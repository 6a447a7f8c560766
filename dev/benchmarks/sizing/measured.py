"""What a measurement found, and what it says of the costs of a task."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dev.benchmarks.sizing.costs import TaskCost

GROUP = 500
"""Tasks that a child claims at once, if their handlers take no time."""
GROUP_TRIPS, GROUP_FLUSHES = 10, 3
"""Of such a group: claim and settle; measured (docs/scaling.md)."""
INSERT_TRIPS, INSERT_FLUSHES = 2.0, 0.03
"""Of a task with one write: its statement, the settle with its COMMIT, its share of a claim and of
the end of a message. Runs in a row do not wait for the disk."""
BEAT_SHARE = 0.08
"""CPU of beat for each id, as a share of what a child takes for a task that does nothing: measured
(docs/scaling.md)."""
_LEAST = 0.1
"""Of the time that a child spends, the database's CPU is no less than this."""


@dataclass(frozen=True, slots=True)
class DrainMeasured:
    """What one child did with tasks of one kind."""

    tasks: int
    rate: float
    """Tasks a second."""
    child_us: float
    """CPU of the child, per task."""

    @property
    def task_us(self) -> float:
        return 1e6 / self.rate


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured on somebody's database."""

    settings: dict[str, str]
    round_trip_ms: float
    way_ms: float
    """Of it what is no CPU, here or there: the network, and that processes wake up."""
    commit_ms: float
    """One INSERT with its commit, the median."""
    commit_p99_ms: float
    flush_ms: float
    """By how much less it takes without waiting for the disk, or for a standby."""
    create_one: float
    """``create_task`` with a commit each, calls a second."""
    create_bulk: float
    """``create_tasks`` of 1,000 with a commit, tasks a second."""
    groups: DrainMeasured
    """Tasks that do nothing."""
    inserts: DrainMeasured
    """Tasks that write one row each."""
    seconds: float
    """How long it took."""

    def cost_of_groups(self) -> TaskCost:
        return self._cost(self.groups, GROUP_TRIPS / GROUP, GROUP_FLUSHES / GROUP, GROUP)

    def cost_of_inserts(self, wait_s: float = 0.0) -> TaskCost:
        """Return it of such a task whose handler also waits so long for others."""
        return replace(self._cost(self.inserts, INSERT_TRIPS, INSERT_FLUSHES, 1), wait_s=wait_s)

    def _cost(self, drained: DrainMeasured, trips: float, flushes: float, group: int) -> TaskCost:
        """Take for the database's what is neither the child's, nor the network's, nor the disk's.

        Nobody tells a client how much CPU it used there.
        """
        waits_us = 1e3 * (trips * self.way_ms + flushes * self.flush_ms)
        database_us = max(drained.task_us - drained.child_us - waits_us, _LEAST * drained.task_us)
        return TaskCost(
            child_s=drained.child_us / 1e6,
            database_s=database_us / 1e6,
            beat_s=BEAT_SHARE * self.groups.child_us / 1e6,
            trips=trips,
            flushes=flushes,
            group=group,
        )
