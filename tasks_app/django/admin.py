"""Tasks in Django's admin, read only. Actions are in the dashboard and ``manage.py tasks_app``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db import connections
from django.utils.functional import cached_property
from sqlalchemy import Connection

from tasks_app.django.configuration import database_alias
from tasks_app.django.models import TaskView
from tasks_app.pool.connection.psycopg_connection import on_psycopg
from tasks_app.pool.statistics.read import unkept
from tasks_app.runtime.api.tasks import masked_texts

COUNTED = 10_000


class FirstPages(Paginator):
    """It counts up to ``COUNTED`` rows: the pools may have millions."""

    @cached_property
    def count(self) -> int:
        return len(self.object_list[:COUNTED].values_list("pk", flat=True))


@admin.register(TaskView)
class TaskAdmin(admin.ModelAdmin):
    """Read only; the payload is not shown."""

    list_display = ("id", "state", "name", "queue", "attempt", "due", "finished_at")
    exclude = ("due_at", "held_due_at", "waits_for", "error")
    readonly_fields = ("due", "last_error")
    list_filter = ("pool", "state")
    search_fields = ("=id", "=name", "=biz_key")
    search_help_text = "an id, or a whole name or business key"
    show_full_result_count = False
    paginator = FirstPages

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).using(database_alias())

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        gone = unkept(_connection())
        subtitle = {"subtitle": gone.words} if gone else {}
        return super().changelist_view(request, subtitle | (extra_context or {}))

    @admin.display(ordering="due_at")
    def due(self, task: TaskView) -> datetime | str:
        if task.waits_for and not task.held:
            return "waits for its needs"
        return "held" if task.held else task.due_at

    @admin.display(description="error")
    def last_error(self, task: TaskView) -> str | None:
        if not task.error:
            return None
        return masked_texts(_connection(), {task.id: task.error})[task.id]

    def has_add_permission(self, *_: Any) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission


def _connection() -> Connection:
    database = connections[database_alias()]
    database.ensure_connection()
    return on_psycopg(database.connection)
