"""Who a child is, and what it says of itself."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """One incarnation of a child: its owner name is never used again."""

    owner: str
    node: str
    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    threads: int
    """How many messages it works off at a time."""
    parent: int | None
    """The pid of the process that watches this one; None: nobody does."""

    @property
    def orphaned(self) -> bool:
        """Whether the parent is gone: nobody would reap us, so we claim nothing more."""
        return self.parent is not None and os.getppid() != self.parent
