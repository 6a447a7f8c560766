"""Which extra of the package a command needs; who runs tasks needs none."""

from __future__ import annotations

from importlib.util import find_spec

from tasks_app.domain.errors import ConfigurationError

_MODULES = {
    "": (),
    "cli": ("alembic", "rich"),
    "embedded": ("alembic", "rich", "psutil"),
    "demo": ("alembic", "rich", "psutil", "flower", "aiosmtpd"),
}
"""Of each extra, what it brings; which servers there are ``embedded`` looks for itself."""
_OF_COMMANDS = {
    **dict.fromkeys(("healthz", "work"), ""),
    **dict.fromkeys(("up", "down", "urls"), "embedded"),
    "demo": "demo",
}


def check_extra(command: str) -> None:
    """Pass if a command finds what it needs.

    Raises:
        ConfigurationError: its extra is not installed.
    """
    extra = _OF_COMMANDS.get(command, "cli")
    if any(find_spec(module) is None for module in _MODULES[extra]):
        raise ConfigurationError(
            f"tasks-app {command} needs an extra. Run: pip install 'tasks_app[{extra}]'"
        )
