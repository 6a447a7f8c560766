"""P2 to P6 as checks of one step: the world before and after it.

That every task can still end (the other half of P2) is checked by the explorer.
"""

from __future__ import annotations

from dev.verification.rows import MAX_ATTEMPTS, TERMINAL, Kind, Row
from dev.verification.world import RunSetup, World, spent

LIFE_GIVING = ("is requeued", "is forgotten")
"""The only steps that may change a terminal row: an operator, and a database that forgets."""


def broken_promise(setup: RunSetup, before: World, what: str, after: World) -> str | None:
    """The first promise that the step breaks, in words."""
    if after.wrong != before.wrong:
        return after.wrong
    if after.rows is before.rows:
        return None
    for task, (old, new) in enumerate(zip(before.rows, after.rows, strict=True)):
        if old is new or old == new:
            continue
        complaint = (
            left_a_terminal_pool(old, new, what)
            or effects_do_not_match(setup.kinds[task], new)
            or came_back_though_cancelled(new)
            or ran_too_often(setup, setup.kinds[task], new)
            or ran_though_it_must_not(setup.kinds[task], old, new)
            or innocent_was_charged(setup, task, new)
        )
        if complaint is not None:
            return f"{complaint} (T{task})"
    return more_failures_than_deaths(setup, after)


def left_a_terminal_pool(old: Row, new: Row, what: str) -> str | None:
    """P2: exactly one terminal pool, once, for ever."""
    if old.state in TERMINAL and not what.endswith(LIFE_GIVING):
        return f"P2: a task that had {old.state} is changed ({new.state})"
    return None


def effects_do_not_match(kind: Kind, row: Row) -> str | None:
    """P4: writes through ctx.session commit exactly once, together with SUCCEEDED."""
    if not kind.in_session:
        return None
    if row.effects != (row.state == "SUCCEEDED"):
        return f"P4: {row.state} with {row.effects} committed effects"
    return None


def came_back_though_cancelled(row: Row) -> str | None:
    """P2, H3: a task that was told to cancel does not wait for another run."""
    if row.state == "PENDING" and row.cancel_requested:
        return "P2: cancelled while running, yet pending again"
    return None


def ran_too_often(setup: RunSetup, kind: Kind, row: Row) -> str | None:
    """P5 for at_most_once tasks, P3 for tasks that kill."""
    if kind.at_most_once and row.runs > 1 + setup.faults.get("requeue", 0):
        return "P5: an at_most_once task was started twice"
    if kind.kills != "nobody" and row.runs > setup.most_runs:
        return f"P3: a task that kills was started {row.runs} times"
    return None


def ran_though_it_must_not(kind: Kind, old: Row, new: Row) -> str | None:
    """H14: disabled, expired or early tasks are never claimed."""
    if new.state != "RUNNING" or old.state == "RUNNING":
        return None
    if not kind.enabled:
        return "H14: a disabled task was claimed"
    if old.expired:
        return "H14: an expired task was claimed"
    if not old.due:
        return "H14: a task was claimed before it was due"
    return None


def innocent_was_charged(setup: RunSetup, task: int, row: Row) -> str | None:
    """P3: nobody is charged for a death in which it did not run."""
    if task not in setup.innocent:
        return None
    if row.failures:
        return "P3: an innocent neighbour was charged a failure"
    if row.crashes > setup.innocent_crashes:
        return f"P3: {row.crashes} crashes were counted on an innocent neighbour"
    if row.state == "FAILED":
        return "P3: an innocent neighbour ended in the error pool"
    return None


def more_failures_than_deaths(setup: RunSetup, world: World) -> str | None:
    """P3: the reaper charges once, however many reapers come."""
    if not setup.charges_are_deaths:
        return None
    deaths = spent(setup, world, "child crash")
    failures = sum(MAX_ATTEMPTS if row.state == "FAILED" else row.failures for row in world.rows)
    if failures > deaths:
        return f"P3: {failures} failures were charged for {deaths} deaths"
    return None
