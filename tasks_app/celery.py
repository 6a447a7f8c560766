"""The app for ``celery -A tasks_app worker | beat | flower``."""

from __future__ import annotations

from tasks_app.broker.app import make_celery
from tasks_app.domain.settings import load_settings

app = make_celery(load_settings())
