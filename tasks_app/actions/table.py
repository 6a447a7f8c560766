"""All actions, for the dashboard, the reference and the tests; a command imports its own."""

from __future__ import annotations

from tasks_app.actions.action import Action
from tasks_app.actions.queues import OF_QUEUES
from tasks_app.actions.schedules import OF_SCHEDULES
from tasks_app.actions.tasks import OF_TASKS, UNBLOCK
from tasks_app.actions.work import OF_WORK

ACTIONS: tuple[Action, ...] = (*OF_TASKS, UNBLOCK, *OF_WORK, *OF_SCHEDULES, *OF_QUEUES)
