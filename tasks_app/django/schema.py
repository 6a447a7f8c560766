"""Our tables, made by ``manage.py migrate`` after Django's own."""

from __future__ import annotations

from typing import Any

from tasks_app.django.configuration import database_alias, url_of
from tasks_app.pool import schema
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.maintainer import Maintainer
from tasks_app.runtime.migration import migrate


def migrate_with_django(*, using: str, verbosity: int = 1, **_: Any) -> None:
    """Bring our schema up to date, as ``manage.py tasks_app migrate`` does.

    Django also calls this after each flush of a test database: then there is nothing to do.
    """
    if using != database_alias():
        return
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
