"""A schedule as code declares it, and what code may change in one that an operator changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tasks_app.domain.creation import NewTask
from tasks_app.domain.creation import validate
from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.schedules.schedule import (
    PLANNED,
    Schedule,
    SchedulePlan,
    plan_of,
)
from tasks_app.domain.schedules.when import When
from tasks_app.domain.tasks.names import check_name

_AS_ONE = ("kind", "expression", "zone")
"""Changed by an operator, all three stay: a new kind does not fit an old expression."""
_LIMIT = 1024 * 1024
"""Bytes of a payload in code; the producer's limit guards against data from outside."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """A schedule as a module declares it; its task may be declared elsewhere, and later."""

    name: str
    new: NewTask
    when: When
    module: str

    def plan(self, spec: HandlerSpec | None) -> SchedulePlan:
        """Check it; raises InvalidTaskError. ``spec``: the task's handler, if known here."""
        return plan_of(validate(self.new, spec, _LIMIT), self.when)


def declare(name: str, new: NewTask, when: dict[str, Any], module: str) -> Declaration:
    """Return the declaration, checked as far as possible before all modules are loaded.

    Raises:
        InvalidTaskError: a name, option or time is wrong.
    """
    for word in when:
        if word not in When.__annotations__:
            known = ", ".join(sorted(When.__annotations__))
            raise InvalidScheduleError(f"options.{word}"[:80], "is unknown", known)
    words: Any = {word: value for word, value in when.items() if value is not None}
    declaration = Declaration(check_name(name), new, words, module)
    declaration.plan(None)
    return declaration


def changes_by_code(standing: Schedule, plan: SchedulePlan) -> dict[str, Any]:
    """Return what code changes in a schedule that it declared before.

    What an operator has changed since then stays, even if code changes it, too.
    """
    new, old, now = plan.plain(), standing.declared or {}, standing.plain()
    theirs = {name for name in PLANNED if name in old and now[name] != old[name]}
    if theirs & set(_AS_ONE):
        theirs |= set(_AS_ONE)
    if standing.retired:  # it was disabled because code no longer declared it
        theirs.discard("enabled")
    return {
        name: getattr(plan, name)
        for name in PLANNED
        if name not in theirs and new[name] != now[name]
    }
