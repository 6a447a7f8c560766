"""A Django project in this process, on the shared database."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from sqlalchemy.engine import make_url

from tasks_app.domain.config.settings import FRAMEWORK_SETTINGS
from tasks_app.runtime.handlers.registry import HANDLERS
from tests.django.django_shop import shop  # noqa: F401  a fixture
from tests.runtime.bench import Bench
from tests.runtime.conftest import bench  # noqa: F401  a fixture

if pytest.importorskip("django"):
    import django
    from django.conf import settings


def database_of(url: str) -> dict[str, str]:
    """Django's words for a URL."""
    said = make_url(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": said.database or "",
        "USER": said.username or "",
        "PASSWORD": said.password or "",
        "HOST": said.query.get("host", said.host) or "",
        "PORT": str(said.query.get("port", said.port or "")),
    }


@pytest.fixture(scope="session")
def configured(database_url: str) -> None:
    """Django, set up once in this process."""
    settings.configure(
        DATABASES={
            "default": database_of(database_url),
            "other": database_of(database_url),
            "small": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        },
        INSTALLED_APPS=["tasks_app.django", "tests.django.shop"],
        USE_TZ=True,
        TASKS={
            "default": {"BACKEND": "tasks_app.django.backend.TasksBackend", "QUEUES": []},
            "retried": {
                "BACKEND": "tasks_app.django.backend.TasksBackend",
                "OPTIONS": {"retry": "0s,0s"},
            },
        },
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    )
    django.setup()
    from django.db import connection

    from tests.django.shop.models import Line, Order

    with connection.schema_editor() as editor:
        editor.create_model(Order)
        editor.create_model(Line)
    HANDLERS.plain_lane = None
    FRAMEWORK_SETTINGS.provide(dict)


@pytest.fixture
def site(configured: None, bench: Bench) -> Iterator[Bench]:  # noqa: F811
    """The workbench; its plain handlers run as in a Django site."""
    from django.db import connections

    from tasks_app.django.configuration import settings_of_django
    from tasks_app.django.transactions import DjangoLane
    from tests.django.shop.models import Order

    Order.objects.all().delete()
    bench.registry.plain_lane = partial(DjangoLane, alias="default")
    FRAMEWORK_SETTINGS.provide(settings_of_django)
    yield bench
    FRAMEWORK_SETTINGS.provide(dict)
    connections.close_all()
