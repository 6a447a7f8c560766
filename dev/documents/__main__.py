"""``python -m dev.documents``: write all pages that come from the code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import create_engine

from dev.documents import actions, api, commands, lifecycle, metrics, schema, settings, testing
from tasks_app.embedded.stack import temporary
from tasks_app.pool.schema import migrate

DOCS = Path(__file__).parents[2] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "lifecycle.md": lifecycle.page,
    "reference/settings.md": settings.page,
    "reference/metrics.md": metrics.page,
    "reference/cli.md": commands.page,
    "reference/actions.md": actions.page,
    "reference/handler.md": api.handler_page,
    "reference/context.md": api.context_page,
    "reference/hooks.md": api.hooks_page,
    "reference/exports.md": api.exports_page,
    "reference/testing.md": testing.page,
}


def write() -> None:
    """Write them, docs/schema.md from a new database on a server of its own."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
    with temporary() as servers:
        engine = create_engine(servers.urls.database)
        with engine.begin() as connection:
            migrate(connection)
            (DOCS / "schema.md").write_text(schema.page(connection))
        engine.dispose()


if __name__ == "__main__":
    write()
