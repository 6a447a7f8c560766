"""The guide from Celery: its code runs in the order in which it is read, and does what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tasks_app import Settings, create_task
from tasks_app.celery_tasks import run_from_pool
from tasks_app.domain.tasks.retry_policy import MOST_ATTEMPTS
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.testing import drain
from tests.broker.side_by_side import CASES
from tests.docs.reading import blocks, text_of

PAGE = text_of("docs/from/celery.md")
TASKS, BEFORE, AFTER, OUTBOX, CHAIN, HANDLER = blocks(PAGE, "python")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "guide_order"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """A shop's session."""
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield session
    Base.metadata.drop_all(engine)


def run(block: str, names: dict[str, Any]) -> None:
    """Run code whose app is nobody else's: other tests' tasks must not become its own."""
    aside = block.replace("Celery(", "Celery(set_as_current=False, main=")
    exec(compile(aside, "guide", "exec"), names)


@pytest.fixture(scope="module")
def shop() -> Iterator[dict[str, Any]]:
    """The names of the guide's code, of all blocks but the one before the change."""
    names: dict[str, Any] = {"__name__": "shop"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HANDLERS, "specs", {})
        for block in (TASKS, AFTER, OUTBOX, CHAIN, HANDLER):
            run(block, names)
        run_from_pool(names["app"])
        yield names


def rows(engine: Engine) -> list[tuple[str, str, Any]]:
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT name, state, result FROM task_all ORDER BY id")
        return [tuple(row) for row in found]


def test_both_ways_of_buying_write_rows_of_the_transaction(
    engine: Engine, database_url: str, session: Session, shop: dict[str, Any]
) -> None:
    shop["buy"](session, Order(id=1))
    shop["buy_and_tell"](session, Order(id=2))

    drain(Settings(database_url=database_url))

    assert rows(engine) == [
        ("shop.send_receipt", "SUCCEEDED", 1),
        ("shop.tell_warehouse", "SUCCEEDED", 2),
        ("shop.tell_warehouse", "PENDING", None),
    ]


def test_the_next_task_commits_with_the_one_before(
    engine: Engine, database_url: str, shop: dict[str, Any]
) -> None:
    with engine.begin() as connection:
        create_task(connection, shop["pack"], args=[7])
        create_task(connection, shop["book"], {"order_id": 7})

    drain(Settings(database_url=database_url))

    assert sorted(rows(engine)) == [
        ("shop.book", "SUCCEEDED", None),
        ("shop.pack", "SUCCEEDED", None),
        ("shop.send_receipt", "SUCCEEDED", 7),
    ]


def test_the_way_before_is_plain_celery() -> None:
    names: dict[str, Any] = {"__name__": "before"}
    run(BEFORE, names)

    assert "tasks_app" not in BEFORE
    assert callable(names["buy"])


def test_its_settings_exist_and_its_figures_are_true() -> None:
    for name in re.findall(r"TASKS_APP_([A-Z_]+)", PAGE):
        assert name.lower() in Settings.model_fields
    assert f"{len(CASES)} cases" in PAGE
    assert f"{MOST_ATTEMPTS:,} attempts" in PAGE
