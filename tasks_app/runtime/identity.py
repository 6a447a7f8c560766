"""Who a child is, and what it offers."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """One incarnation of a child: no other ever has its owner name."""

    owner: str
    node: str
    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    threads: int
    """How many messages it carries out at a time."""
    parent: int | None
    """The pid of the process that watches this one; None: none does."""

    @property
    def orphaned(self) -> bool:
        """Whether the parent is gone: nobody would reap this child, so it claims nothing more."""
        return self.parent is not None and os.getppid() != self.parent
