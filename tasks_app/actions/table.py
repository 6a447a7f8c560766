"""All actions, for the dashboard, the reference and the tests; a command imports its own."""

from __future__ import annotations

from tasks_app.actions import queues, schedules, tasks
from tasks_app.actions.action import actions_of

ACTIONS = (
    *tasks.OF_TASKS,
    *(each for module in (tasks, schedules, queues) for each in actions_of(module)),
)
