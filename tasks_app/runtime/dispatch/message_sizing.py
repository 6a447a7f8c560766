"""How ids are grouped into messages: as many as a child carries out in a moment, in their order.

A message is in one child's hands. Hundreds of fast tasks make one worth its way; a slow one goes
alone, so that nothing waits behind it that another child could run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MESSAGE_S = 0.4
"""So much of a child's time a message takes up, likely; between two it waits some milliseconds."""
UNKNOWN_S = MESSAGE_S / 10
"""For names of which nobody has run a task yet: a few go out, and then it is known."""


def grouped(
    tasks: Iterable[tuple[int, str]], paces: Mapping[str, float], *, messages: int, largest: int
) -> list[list[int]]:
    """Return the ids of at most so many messages; what does not fit waits for the next pass."""
    groups: list[list[int]] = []
    full_s = 0.0
    for task_id, name in tasks:
        takes_s = paces.get(name, UNKNOWN_S)
        if not groups or len(groups[-1]) >= largest or full_s + takes_s > MESSAGE_S + 1e-9:
            if len(groups) == messages:
                break
            groups.append([])
            full_s = 0.0
        groups[-1].append(task_id)
        full_s += takes_s
    return groups
