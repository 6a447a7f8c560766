"""``INSTALLED_APPS``: what happens when Django has loaded all apps, and after ``migrate``."""

from __future__ import annotations

import os
from typing import Any

from django.apps import AppConfig
from django.core.checks import Error, register
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from tasks_app.django.configuration import database_alias, settings_of_django, url_of
from tasks_app.django.connection_reset import leave_to_parent
from tasks_app.domain.config.settings import FRAMEWORK_SETTINGS, load_settings
from tasks_app.domain.errors import ConfigurationError
from tasks_app.runtime.handlers.registry import HANDLERS


class TasksAppConfig(AppConfig):
    name = "tasks_app.django"
    label = "tasks_app"
    verbose_name = "Tasks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Enter Django's settings and transactions, and import each app's ``tasks.py``."""
        FRAMEWORK_SETTINGS.provide(settings_of_django)
        os.register_at_fork(after_in_child=leave_to_parent)
        HANDLERS.plain_lane = _lane
        post_migrate.connect(_migrate, sender=self)
        register(_check)
        autodiscover_modules("tasks")


def _check(**_: Any) -> list[Error]:
    """Say at ``manage.py check``, and before each command, what is wrong with our settings."""
    try:
        load_settings()
    except ConfigurationError as error:
        return [Error(str(error), id="tasks_app.E001")]
    return []


def _lane(database: Any, guard: Any) -> Any:
    from tasks_app.django.transactions import DjangoLane  # noqa: PLC0415  only workers need it

    return DjangoLane(database, guard, database_alias())


def _migrate(*, using: str, verbosity: int = 1, **_: Any) -> None:
    """Bring our schema up to date, as ``manage.py tasks_app migrate`` does.

    Django also calls this after each flush of a test database: then there is nothing to do.
    """
    if using != database_alias():
        return
    from tasks_app.pool import schema  # noqa: PLC0415  only migrate needs it
    from tasks_app.runtime.db.database import Database  # noqa: PLC0415
    from tasks_app.runtime.leader.maintainer import Maintainer  # noqa: PLC0415
    from tasks_app.runtime.migration import migrate  # noqa: PLC0415

    database = Database(url_of(using))
    try:
        with database.begin() as connection:
            behind = schema.is_behind(connection)
        if behind:
            before, after = migrate(database)
            Maintainer(database).run_once()
            if verbosity:
                print(f"  tasks_app: from {before or 'nothing'} to {after}")  # noqa: T201  as migrate does
    finally:
        database.dispose()
