"""A schedule as code declares it, and what code may change of one that operators changed, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tasks_app.domain.creation.new_task import NewTask
from tasks_app.domain.creation.validation import validate
from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.schedules.schedule import (
    PLANNED,
    Plan,
    Schedule,
    check_schedule_name,
    plan_of,
)
from tasks_app.domain.schedules.when import When

_AS_ONE = ("kind", "expression", "zone")
"""An operator who changed one of them is left all three: a new kind does not fit an old text."""
_LIMIT = 1024 * 1024
"""Of a payload in code; the producer's own limit guards against data from outside."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a module says; its task may be declared elsewhere, and later."""

    name: str
    new: NewTask
    when: When
    module: str

    def plan(self, spec: HandlerSpec | None) -> Plan:
        """Return it checked; ``spec`` is the task's handler where this process knows it.

        Raises:
            InvalidTaskError: something is wrong with it.
        """
        return plan_of(validate(self.new, spec, _LIMIT), self.when)


def declare(name: str, new: NewTask, when: dict[str, Any], module: str) -> Declaration:
    """Return a declaration that can work, as far as one can tell before all modules are loaded.

    Raises:
        InvalidTaskError: something is wrong with it.
    """
    for word in when:
        if word not in When.__annotations__:
            known = ", ".join(sorted(When.__annotations__))
            raise InvalidScheduleError(f"options.{word}"[:80], "is unknown", known)
    words: Any = {word: value for word, value in when.items() if value is not None}
    declaration = Declaration(check_schedule_name(name), new, words, module)
    declaration.plan(None)
    return declaration


def changes_by_code(standing: Schedule, plan: Plan) -> dict[str, Any]:
    """Return what code changes of a schedule that it declared before.

    What an operator changed since stays as it is, whatever code says of it now.
    """
    new, old, now = plan.plain(), standing.declared or {}, standing.plain()
    theirs = {name for name in PLANNED if name in old and now[name] != old[name]}
    if theirs & set(_AS_ONE):
        theirs |= set(_AS_ONE)
    if standing.retired:  # it was switched off because code had left it out
        theirs.discard("enabled")
    return {
        name: getattr(plan, name)
        for name in PLANNED
        if name not in theirs and new[name] != now[name]
    }
