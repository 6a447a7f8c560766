"""The door for Django projects: ``"tasks_app.django"`` in ``INSTALLED_APPS``.

Tasks are created on Django's connection, within ``transaction.atomic()``. What a plain handler
writes through the ORM commits together with its task's outcome.
"""

from __future__ import annotations

from tasks_app.django.creating import create_task, create_tasks, non_atomic

__all__ = ["create_task", "create_tasks", "non_atomic"]
