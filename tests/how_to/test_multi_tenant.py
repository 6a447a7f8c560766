"""The guide to tenants: whose a run is, what it sees, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from tasks_app import Settings, TaskContext, create_task, handler, set_limit
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.testing import Drained, drain
from tests.docs.reading import blocks
from tests.how_to.conftest import Load
from tests.how_to.pages import page
from tests.servers import named

POLICY, PATH = blocks(page("multi-tenant"), "sql")
CURRENT = text("SELECT current_setting('app.tenant', true)")
ROLE = named("tenants")


class Shop:
    """Runs plain handlers of a test on the committed pool."""

    def __init__(self, tenants: Any, engine: Engine, url: str) -> None:
        self.tenants, self.engine = tenants, engine
        self.registry, self._settings = Registry(), Settings(database_url=url)

    def create(self, tenant: int, name: str, number: int = 1, **options: Any) -> None:
        with Session(self.engine) as session, session.begin():
            for _ in range(number):
                self.tenants.create_for(session, tenant, name, {}, **options)

    def drained(self) -> Drained:
        return drain(self._settings, registry=self.registry)


@pytest.fixture(scope="module")
def tenants(load: Load) -> Any:
    return load("multi-tenant/tenants.py")


@pytest.fixture
def shop(tenants: Any, engine: Engine, database_url: str) -> Shop:
    return Shop(tenants, engine, database_url)


@pytest.fixture
def invoices(engine: Engine) -> Iterator[None]:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE invoice (tenant int)"))
        connection.execute(text("INSERT INTO invoice VALUES (7), (7), (8)"))
        connection.execute(text(POLICY))
        connection.execute(text(f"CREATE ROLE {ROLE}"))
        connection.execute(text(f"GRANT SELECT ON invoice TO {ROLE}"))
    yield
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE invoice"))
        connection.execute(text(f"DROP ROLE {ROLE}"))


@pytest.mark.usefixtures("invoices")
def test_a_run_sees_the_rows_of_its_tenant_also_after_a_commit(shop: Shop) -> None:
    @handler("count", registry=shop.registry)
    def count(ctx: TaskContext) -> list[int]:
        found = []
        for _ in range(2):
            ctx.session.execute(text(f"SET LOCAL ROLE {ROLE}"))
            found += ctx.session.scalars(text("SELECT count(*) FROM invoice")).all()
            ctx.session.execute(text("RESET ROLE"))
            ctx.commit()
        return found

    for tenant in (7, 8):
        shop.create(tenant, "count")

    runs = sorted(shop.drained().assert_succeeded(), key=lambda run: run.task_id)
    assert [run.result for run in runs] == [[2, 2], [1, 1]]


def test_a_task_without_a_tenant_fails_and_finds_no_earlier_one(
    shop: Shop, session: Session
) -> None:
    seen = []

    @handler("look", registry=shop.registry)
    def look(ctx: TaskContext) -> None:
        seen.append(ctx.session.scalar(CURRENT))

    shop.create(7, "look")
    shop.drained()
    with shop.engine.begin() as connection:
        create_task(connection, "look")
    (failed,) = shop.drained().failed
    assert seen == ["7"]
    assert str(failed.error).startswith("Fail: The task has no tenant")


def test_a_task_has_the_keys_of_its_tenant(tenants: Any, session: Session) -> None:
    tenants.create_for(session, 7, "work", {}, priority=1)
    keys = session.execute(text("SELECT fair_key, limit_key, priority FROM task_pending")).one()
    assert keys == ("tenant:7", "tenant:7", 1)


def test_one_tenant_is_held_by_a_limit_of_its_own(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        set_limit(connection, "key", "tenant:*", most=5)
        set_limit(connection, "key", "tenant:7", rate="1/1h")
    handler("work", registry=shop.registry)(lambda ctx: ctx.headers["tenant"])
    for tenant in (7, 8):
        shop.create(tenant, "work", 9)
    order = [run.result for run in shop.drained()]
    assert (order.count(7), order.count(8)) == (1, 9)


@pytest.mark.test_all
def test_a_path_of_the_run_leads_to_the_schema_of_the_tenant(shop: Shop) -> None:
    @handler("note", registry=shop.registry)
    def note(ctx: TaskContext) -> None:
        ctx.session.execute(text(PATH))
        ctx.session.execute(text("INSERT INTO note VALUES (1)"))

    with shop.engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA tenant_7"))
        connection.execute(text("CREATE TABLE tenant_7.note (n int)"))
    try:
        shop.create(7, "note")
        shop.drained().assert_succeeded()
        with shop.engine.connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM tenant_7.note")) == 1
    finally:
        with shop.engine.begin() as connection:
            connection.execute(text("DROP SCHEMA tenant_7 CASCADE"))
