"""What people do to tasks, queues, schedules and limits: each action is one record."""

from __future__ import annotations
