"""``manage.py tasks_app …``: the commands of ``tasks-app``, with Django's settings and handlers."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = (
        "The commands of tasks-app: migrate, work, list, doctor … See manage.py tasks_app --help."
    )
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Let click read the arguments: it has its own --help and its own errors."""
        from tasks_app.cli.group import group  # noqa: PLC0415  it is rare

        group(args=argv[2:], prog_name=f"{argv[0]} {argv[1]}")

    def handle(self, *args: Any, **_: Any) -> None:
        """Do the same for ``call_command("tasks_app", "migrate")``."""
        from tasks_app.cli.group import group  # noqa: PLC0415  it is rare

        group(args=[str(arg) for arg in args], prog_name="tasks_app", standalone_mode=False)

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("args", nargs="*")
