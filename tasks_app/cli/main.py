"""``tasks-app``: the entry of the console script and of ``python -m tasks_app``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run a command; usual forms of a probe are answered before anything else is imported."""
    match sys.argv[1:]:
        case ["healthz", "--role", ("worker" | "beat" | "db") as role, *more] if _is_node(more):
            from tasks_app.runtime.health_files import probe  # noqa: PLC0415

            sys.exit(probe(role, *more[1:]))
        case _:
            from tasks_app.cli.group import group  # noqa: PLC0415

            group(prog_name="tasks-app")


def _is_node(options: list[str]) -> bool:
    return not options or (options[0] == "--node" and len(options) == 2)  # noqa: PLR2004
