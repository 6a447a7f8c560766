"""What the shop knows of its own day, noted after each commit: the checks use it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Diary:
    """Ids of orders and tasks of one day, from the foreground's point of view."""

    names: tuple[str, ...]
    """The names of the shop's tasks."""
    since: int = 0
    """The highest task id before the day began."""
    orders: list[int] = field(default_factory=list)
    rolled_back: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    """Orders of the customer whose address the mail server refuses."""
    created: list[int] = field(default_factory=list)
    """All tasks of committed transactions of the foreground."""
    never_created: list[int] = field(default_factory=list)
    """The tasks of transactions that were rolled back."""
    poison: list[int] = field(default_factory=list)
    """The tasks that kill their process."""
    in_hand: int | None = None
    """How many tasks the worker had in hand when it was killed; None: it was not."""
    forgotten: int | None = None
    """How many messages the broker lost; None: it lost nothing."""
