"""``python -m dev.documents``: write the pages of the code; ``site``: those of the site alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, create_engine

from dev.benchmarks import report
from dev.benchmarks.figures import read
from dev.documents import actions, api, commands, lifecycle, metrics, schema, settings, testing
from tasks_app.embedded.stack import temporary
from tasks_app.pool.schema import migrate

DOCS = Path(__file__).parents[2] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "lifecycle.md": lifecycle.page,
    "reference/settings.md": settings.page,
    "reference/metrics.md": metrics.page,
    "reference/cli.md": commands.short_page,
    "reference/handler.md": api.handler_page,
    "reference/context.md": api.context_page,
}
"""In git: a test of each says that it is current."""
OF_THE_SITE: dict[str, Callable[[], str]] = {
    "reference/actions.md": actions.page,
    "reference/commands.md": commands.page,
    "reference/exports.md": api.exports_page,
    "reference/figures.md": lambda: report.figures_page(read(report.newest())),
    "reference/hooks.md": api.hooks_page,
    "reference/test-kit.md": testing.page,
}
"""Long ones, not in git."""
OF_THE_DATABASE: dict[str, Callable[[Connection], str]] = {"reference/schema.md": schema.page}
"""The same, from a new database on a server of its own."""


def write(pages: dict[str, Callable[[], str]]) -> None:
    """Write these, and those of the database."""
    for name, page in pages.items():
        (DOCS / name).write_text(page())
    with temporary() as servers:
        engine = create_engine(servers.urls.database)
        with engine.begin() as connection:
            migrate(connection)
            for name, described in OF_THE_DATABASE.items():
                (DOCS / name).write_text(described(connection))
        engine.dispose()


if __name__ == "__main__":
    write(OF_THE_SITE if sys.argv[1:] == ["site"] else PAGES | OF_THE_SITE)
