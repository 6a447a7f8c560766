"""Who may see the dashboard, as the settings say it: passwords and roles by name."""

from __future__ import annotations

ROLES = ("viewer", "operator", "admin")
"""Each may do what the ones before it may."""
EVERYBODY = "*"


def read_passwords(text: str) -> dict[str, str]:
    """Return the passwords of ``name:password,other:password`` by name.

    Raises:
        ValueError: a name or a password is missing. The message repeats nothing of it.
    """
    pairs = _pairs(text)
    if not all(name and password for name, password in pairs):
        raise ValueError("use name:password, several separated by commas")
    return dict(pairs)


def read_roles(text: str) -> dict[str, str]:
    """Return the roles of ``bob:admin,*:viewer`` by name.

    Raises:
        ValueError: there is no such role, or a name is missing.
    """
    pairs = _pairs(text)
    if not all(name and role in ROLES for name, role in pairs):
        raise ValueError("use bob:admin,*:viewer with the roles viewer, operator and admin")
    return dict(pairs)


def checked_roles(text: str) -> str:
    """Return it, if :func:`read_roles` can read it."""
    read_roles(text)
    return text


def _pairs(text: str) -> list[tuple[str, str]]:
    parts = (each.strip().partition(":") for each in text.split(",") if each.strip())
    return [(name.strip(), value) for name, _, value in parts]
