"""Rules for tasks that are waited for together, and for the task that their end calls."""

from __future__ import annotations

from tasks_app.domain.coordination.groups import GroupProgress
from tasks_app.domain.explain.facts import Facts
from tasks_app.domain.explain.words import count
from tasks_app.domain.finding import Finding, ok


def awaits_its_group(facts: Facts) -> Finding | None:
    """It is a callback, and the group has not called."""
    group = facts.callback_of
    if facts.row is not None or group is None:
        return None
    if group.outcome is None:
        fact = (
            f"It is not there yet: it waits as the callback of group {group.id}, {_stands(group)}"
        )
        return ok(
            "callback", fact, f"The end of the last calls it: tasks-app groups show {group.id}"
        )
    fact = f"It would be the callback of group {group.id}, {_stands(group)}, and is in no pool"
    advice = "None was declared for that end, or its age removed it"
    return ok("callback", fact, f"{advice}: tasks-app groups show {group.id}")


def member(facts: Facts) -> Finding | None:
    """Others wait for its end."""
    group = facts.member_of
    if facts.row is None or group is None:
        return None
    fact = f"It is a member of group {group.id}, {_stands(group)}"
    return ok("group", fact, f"How far it is: tasks-app groups show {group.id}")


def called(facts: Facts) -> Finding | None:
    """A group has called it."""
    group = facts.callback_of
    if facts.row is None or group is None:
        return None
    fact = f"It is the callback of group {group.id}, {_stands(group)}"
    return ok("callback", fact, f"How it ended: tasks-app groups show {group.id}")


def _stands(group: GroupProgress) -> str:
    if group.outcome is None:
        return f"of whose {count(group.total, 'member')} {group.left} have not ended"
    ends = f"{group.succeeded} succeeded and {group.failed} failed of {group.total}"
    return f"which is over ({group.outcome}: {ends})"


RULES = (member, called)
