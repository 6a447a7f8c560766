"""Rules for members of groups, and for callbacks."""

from __future__ import annotations

from tasks_app.domain.groups import GroupProgress
from tasks_app.domain.explain.facts import TaskFacts
from tasks_app.domain.explain.words import count
from tasks_app.domain.finding import Finding, ok


def awaits_its_group(facts: TaskFacts) -> Finding | None:
    """It is a callback that has no row: the group is not over, or its row is gone."""
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
    advice = "None was declared for that end, it succeeded and left no row, or its age removed it"
    return ok("callback", fact, f"{advice}: tasks-app groups show {group.id}")


def member(facts: TaskFacts) -> Finding | None:
    """Its group waits for its end."""
    group = facts.member_of
    if facts.row is None or group is None:
        return None
    fact = f"It is a member of group {group.id}, {_stands(group)}"
    return ok("group", fact, f"How far it is: tasks-app groups show {group.id}")


def called(facts: TaskFacts) -> Finding | None:
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
