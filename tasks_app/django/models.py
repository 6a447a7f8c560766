"""A model to read tasks with, by the admin and by the ORM.

Without this module Django would not signal our app that ``migrate`` has ended.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from django.db import models

from tasks_app.domain.tasks.states import Pool, State

HELD_FROM = 9500
READ_ONLY = "Tasks are not written through this model. Use create_task, cancel_task, requeue_task."


class TaskView(models.Model):
    """A task of any pool: a row of the view ``task_all``, without payload and result."""

    id = models.BigIntegerField(primary_key=True)
    pool = models.TextField(choices=[(pool.value, pool.value) for pool in Pool])
    state = models.TextField(choices=[(state.value, state.value) for state in State])
    name = models.TextField()
    queue = models.TextField()
    priority = models.SmallIntegerField()
    biz_key = models.TextField(null=True)
    attempt = models.IntegerField()
    failures = models.IntegerField()
    due_at = models.DateTimeField(null=True)
    held_due_at = models.DateTimeField(null=True)
    waits_for = models.IntegerField(null=True)
    expires_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    error = models.TextField(null=True)

    class Meta:
        managed = False
        db_table = "task_all"
        ordering: ClassVar = ["-id"]
        verbose_name = "task"

    @property
    def held(self) -> bool:
        """As ``is_held`` of the pool has it; ``due_at`` is then no date of the task."""
        if self.held_due_at is None or (self.waits_for or 0) > 0:
            return False
        far = self.due_at.year >= HELD_FROM
        return bool(far if self.expires_at is None else self.due_at >= self.expires_at)

    def __str__(self) -> str:
        return f"task {self.pk} ({self.name})"

    def save(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(READ_ONLY)

    delete = save
