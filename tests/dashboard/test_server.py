"""``tasks-app dashboard``: where it listens, and what it brings into other processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tasks_app import Settings
from tasks_app.dashboard.server import check_address
from tasks_app.domain.errors import ConfigurationError

URL = "postgresql+psycopg://u@h/n"


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "10.0.0.1", "shop.example"])
def test_others_need_a_password(host: str) -> None:
    with pytest.raises(ConfigurationError, match="no password"):
        check_address(Settings(database_url=URL), host)
    check_address(Settings(database_url=URL, dashboard_auth="bob:secret"), host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_needs_none(host: str) -> None:
    check_address(Settings(database_url=URL), host)


@pytest.mark.parametrize("wrong", ["bob", "bob:", ":secret", "bob:x,ann"])
def test_a_password_without_its_name_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="name:password"):
        Settings(database_url=URL, dashboard_auth=wrong)


@pytest.mark.parametrize("wrong", ["bob", "bob:root", ":admin"])
def test_roles_are_checked(wrong: str) -> None:
    with pytest.raises(ValueError, match="viewer, operator and admin"):
        Settings(database_url=URL, dashboard_roles=wrong)


@pytest.mark.test_all
def test_producers_and_workers_import_none_of_it() -> None:
    code = (
        "import sys, tasks_app, tasks_app.celery, tasks_app.runtime.worker.standalone;"
        "print([m for m in ('starlette', 'jinja2', 'uvicorn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
