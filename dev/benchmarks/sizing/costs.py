"""What one task costs, and where the system runs that is to do many of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaskCost:
    """What a task costs, each figure its share of all that is done for its group."""

    child_s: float
    """CPU in the child that runs it."""
    database_s: float
    """CPU in PostgreSQL."""
    parent_s: float = 0.0
    """CPU in the worker's parent, on the same host."""
    beat_s: float = 0.0
    """CPU in beat, of which one scans at a time."""
    trips: float = 1.0
    """Answers of the database that the child waits for."""
    flushes: float = 1.0
    """Commits that the child waits for."""
    log_s: float = 0.0
    """Of the disk, to write its part of the log: beside what each flush takes."""
    wait_s: float = 0.0
    """How long its handler waits for others, without CPU."""
    group: int = 1
    """Tasks that a child does in one go."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Hosts, and what is between them."""

    children: int
    """On each host of workers."""
    hosts: int = 1
    cores: int = 4
    """Of each host of workers."""
    database_cores: int | None = 4
    """None: the database is on the one host of workers, and they share its cores."""
    lanes: int = 1
    """Tasks at once in a child: threads, or async handlers."""
    flush_s: float = 0.000_5
    """How long the database's disk takes for a flush of its log."""
    trip_s: float = 0.000_1
    """A round trip over the network, without the work at its ends."""
    slowdown: float = 1.0
    """By how much more CPU the same work takes where all cores of a host are busy."""

    @property
    def connections(self) -> int:
        """Three for each child, and ten for beat, metrics, a dashboard and people."""
        return 3 * self.all_children + 10

    @property
    def all_children(self) -> int:
        """On all hosts."""
        return self.hosts * self.children
