"""``create_task`` in ``transaction.atomic()``, and where it is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tasks_app import NewTask, get_task
from tasks_app import create_task as create_on
from tasks_app.domain.errors import ConfigurationError, InvalidConnectionError
from tasks_app.runtime.hints import HINTS
from tests.runtime.bench import Bench
from tests.runtime.hints.ear import Ear, ear  # noqa: F401  a fixture

if pytest.importorskip("django"):
    from django.db import connection, connections, transaction
    from django.db.transaction import TransactionManagementError
    from django.test import override_settings

    from tasks_app.django import create_task, create_tasks


def names(site: Bench) -> list[str] | None:
    found: Any = site.sql("SELECT array_agg(name ORDER BY id) FROM task_pending")
    return found  # type: ignore[no-any-return]


def test_it_exists_if_the_block_commits(site: Bench) -> None:
    with transaction.atomic():
        task_id = create_task("a", {"n": [1]}, biz_key="b")
        create_tasks([NewTask("b"), NewTask("c")])
        task = get_task(connection, task_id)
        before = names(site)
    assert before is None
    assert names(site) == ["a", "b", "c"]
    assert task is not None
    assert (task.payload, task.biz_key) == ({"n": [1]}, "b")


def test_it_goes_with_its_savepoint(site: Bench) -> None:
    with transaction.atomic():
        create_task("outer")
        with suppress(KeyError), transaction.atomic():
            create_task("inner")
            raise KeyError
    assert names(site) == ["outer"]


def test_a_project_without_our_app_is_refused(site: Bench) -> None:
    """No command of such a project would find the task."""
    with (
        override_settings(INSTALLED_APPS=["tests.django.shop"]),
        transaction.atomic(),
        pytest.raises(ConfigurationError, match="INSTALLED_APPS lacks 'tasks_app"),
    ):
        create_task("t")
    assert names(site) is None


def alone() -> None:
    create_task("t")


def many_alone() -> None:
    create_tasks([NewTask("t")])


def on_the_connection() -> None:
    create_on(connection, "t")


def on_another_alias() -> None:
    with transaction.atomic(using="other"):
        create_task("t")


def in_sqlite() -> None:
    with transaction.atomic(using="small"):
        create_task("t", using="small")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (alone, "within transaction.atomic(using='default')"),
        (many_alone, "within transaction.atomic(using='default')"),
        (on_the_connection, "within transaction.atomic(using='default')"),
        (on_another_alias, "The open transaction is of Django's database 'other'"),
        (in_sqlite, "none of psycopg 3 to PostgreSQL"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_no_task_is_committed_alone(site: Bench, call: Callable[[], None], words: str) -> None:
    with pytest.raises(InvalidConnectionError, match=words.replace("(", r"\(").replace(")", r"\)")):
        call()
    assert names(site) is None


def test_it_is_refused_where_all_will_be_rolled_back(site: Bench) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            create_task("t")
    assert names(site) is None


def test_using_names_another_database(site: Bench) -> None:
    with transaction.atomic(using="other"):
        create_task("t", using="other")
    assert names(site) == ["t"]
    assert not connections["other"].in_atomic_block


def test_a_hint_follows_the_commit_and_no_rollback(site: Bench, ear: Ear) -> None:  # noqa: F811
    with transaction.atomic():
        kept = create_task("kept")
        later = create_task("later", delay="1h")
        with suppress(KeyError), transaction.atomic():
            create_task("lost")
            raise KeyError
        HINTS.flush(5)
        before = list(ear.ids)
    HINTS.flush(5)

    assert before == []
    assert list(ear.ids) == [int(kept)]
    assert later


def test_hints_are_off_while_djangos_tests_run(site: Bench) -> None:
    """Its runner drops the database, to which the sender of hints would still be connected."""
    from django.test.utils import setup_test_environment, teardown_test_environment

    from tasks_app.django.configuration import settings_of_django

    before = settings_of_django()
    setup_test_environment()
    try:
        assert settings_of_django() == before | {"hints": "off"}
    finally:
        teardown_test_environment()
