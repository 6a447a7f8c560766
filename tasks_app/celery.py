"""The app for ``celery -A tasks_app worker | beat | flower``. A wrong setting ends the command."""

from __future__ import annotations

import sys
from typing import Any

from tasks_app.runtime.startup import set_up_framework, uncollected


def find_app() -> Any:
    """Return the app to a spawned child, which imports this module too."""
    return app


with uncollected():  # little of what imports make is garbage
    from tasks_app.domain.config.settings import load_settings
    from tasks_app.domain.errors import EXIT_USAGE, ConfigurationError

    try:
        from tasks_app.broker.app import make_celery  # its tables have the schema's name in them

        set_up_framework()
        app = make_celery(load_settings(), find_app)
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(EXIT_USAGE) from None
