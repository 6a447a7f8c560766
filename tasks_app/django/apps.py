"""``INSTALLED_APPS``: what happens when Django has loaded all apps."""

from __future__ import annotations

import os
from typing import Any

from django.apps import AppConfig
from django.core.checks import Error, register
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from tasks_app.django.configuration import database_alias, settings_of_django
from tasks_app.django.connection_reset import leave_to_parent
from tasks_app.domain.config.settings import FRAMEWORK_SETTINGS, load_settings
from tasks_app.domain.errors import ConfigurationError
from tasks_app.runtime.handlers.registry import HANDLERS


class TasksAppConfig(AppConfig):
    """Its label is ``tasks_app``."""

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


def _migrate(**said: Any) -> None:
    from tasks_app.django.schema import migrate_with_django  # noqa: PLC0415  only migrate needs it

    migrate_with_django(**said)
