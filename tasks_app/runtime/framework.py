"""The framework of a project, set up before settings are read and handlers imported."""

from __future__ import annotations

import os
from importlib.util import find_spec

from tasks_app.domain.errors import ConfigurationError
from tasks_app.runtime.project import DJANGO_VARIABLE


def set_up_framework() -> None:
    """Set Django up, if its settings are named and nobody has done it: ``manage.py`` has.

    Otherwise models could not be imported, and our settings could not stand among Django's.

    Raises:
        ConfigurationError: the module that is named cannot be found.
    """
    module = os.environ.get(DJANGO_VARIABLE)
    if not module or find_spec("django") is None:
        return
    import django  # noqa: PLC0415  few have it
    from django.apps import apps  # noqa: PLC0415

    if apps.ready or apps.loading:
        return
    try:
        django.setup()
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise ConfigurationError(
            f"{DJANGO_VARIABLE} names {module}, which cannot be found. "
            "Check the spelling and that the project's folder is on PYTHONPATH."
        ) from error
