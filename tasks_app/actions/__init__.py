"""What people do to tasks, queues, schedules and the rest: each action is one record."""

from __future__ import annotations
