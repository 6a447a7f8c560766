"""The explanation of a task: the findings of all rules, in their order, and the facts.

A new reason is a new rule in one of the modules beside this one, and a field of the facts if it
needs one. Rules are in the order in which reasons stop a task: the first finding is the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tasks_app.domain.explain import due, groups, over, running, waiting
from tasks_app.domain.explain.facts import MOST_AHEAD, TaskFacts
from tasks_app.domain.finding import Finding

Rule = Callable[[TaskFacts], Finding | None]
RULES: tuple[Rule, ...] = (
    *(groups.awaits_its_group, over.unknown, over.ended, over.failed),
    *running.RULES,
    *waiting.RULES,
    *due.RULES,
    *groups.RULES,
)
_OF_ROW = (
    *("name", "queue", "state", "priority", "attempt", "failures", "max_attempts", "crashes"),
    *("created_at", "due_at", "scan_at", "expires_at", "started_at", "lease_until", "owner"),
    *("cancel_requested_at", "finished_at"),
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a task does not run, or what became of it."""

    task_id: int
    at: datetime
    """When, by the database's clock."""
    findings: tuple[Finding, ...]
    """The first is the answer; the others are true, too."""
    facts: dict[str, Any]
    """The facts behind it; instants are datetimes."""

    @property
    def known(self) -> bool:
        return bool(self.facts)


def explain(facts: TaskFacts) -> Explanation:
    found = tuple(finding for rule in RULES if (finding := rule(facts)) is not None)
    return Explanation(facts.task_id, facts.now, found, _shown(facts))


def _shown(facts: TaskFacts) -> dict[str, Any]:
    row = facts.row
    of = {"member_of": facts.member_of, "callback_of": facts.callback_of}
    groups_ = {name: group.id for name, group in of.items() if group is not None}
    if row is None:
        return groups_
    shown = {name: getattr(row, name) for name in _OF_ROW} | groups_
    if row.held:
        shown |= {"due_at": row.own_date, "scan_at": None, "held": True}
    if facts.last is not None:
        shown |= {"last_cause": facts.last.cause, "last_ended_at": facts.last.ended_at}
    if facts.progress is not None:
        shown |= {"node": facts.progress.node}
    shown |= {"heartbeat_at": facts.heard_at}
    if row.is_over:
        return _without_none(shown)
    service, scan = facts.service, facts.scan
    shown |= {
        "children": f"{service.children} serve the queue, {service.knowing} of them know the name",
        "busy": f"{service.busy} of them, at their last heartbeat",
        "scanned_at": scan.done_at if scan else None,
        "scanned_by": scan.holder if scan else None,
        "unpublished_since": facts.refused_since,
    }
    if scan is not None and scan.messages:
        shown |= {"messages": f"{scan.messages} of the queue in the broker, at the last scan"}
    if facts.ahead is not None:
        more = facts.ahead > MOST_AHEAD
        shown["ahead"] = f"more than {MOST_AHEAD:,}" if more else facts.ahead
    return _without_none(shown)


def _without_none(shown: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shown.items() if value is not None}
