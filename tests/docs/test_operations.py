"""The operator's pages are true of database, Celery and each other."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from celery.app.defaults import DEFAULTS
from sqlalchemy import Connection

from tasks_app import (
    NewTask,
    cancel_task,
    create_group,
    create_task,
    create_tasks,
    get_task,
)
from tasks_app.domain.alerts import RULE_EXAMPLES
from tasks_app.domain.config.settings import Settings
from tasks_app.pool import retention
from tasks_app.pool.dispatch import leader_lease, scan
from tasks_app.pool.operations.grants import RoleKind, grants_sql
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.schema import check_schema
from tasks_app.runtime.alerts.rules import RULES
from tests.docs.reading import DOCUMENTS, PROJECT, blocks, links, text_of

FOLDER = PROJECT / "docs" / "operations"
PAGES = {page.name: page.read_text() for page in sorted(FOLDER.glob("*.md"))}
SQL = [block for page in PAGES.values() for block in blocks(page, "sql")]
GRANTS = "\n".join(grants_sql(kind, str(kind)) for kind in RoleKind)
LEAVE_ALONE = (
    "worker_prefetch_multiplier",
    "accept_content",
    "beat_scheduler",
    "worker_consumer",
    "beat_schedule",
    "broker_transport_options",
)


def celeryconfig() -> dict[str, object]:
    """The settings of the file at the top."""
    names: dict[str, object] = {}
    exec(compile(text_of("celeryconfig.py"), "celeryconfig.py", "exec"), names)
    return {k: v for k, v in names.items() if not k.startswith("_") and k != "annotations"}


def test_the_contents_name_each_page_once() -> None:
    named = re.findall(r"\]\(([\w-]+\.md)\)", PAGES["README.md"])

    assert sorted([*named, "README.md"]) == sorted(PAGES)


def test_the_page_of_alerts_names_each_rule_and_setting() -> None:
    page = PAGES["alerts.md"]
    named = set(re.findall(r"^\| `([a-z-]+)(?::…)?` \|", page, re.M))
    settings = [name for name in Settings.model_fields if "alert" in name]

    assert named == {*RULES, "new-error"}
    assert [name for name in settings if f"TASKS_APP_{name.upper()}`" not in page] == []
    assert all(f"`{rule}`" in page for rule in RULE_EXAMPLES.values())


def test_the_contents_by_kind_name_each_page() -> None:
    docs = PROJECT / "docs"
    pages = {page for page in DOCUMENTS if page.parent in {docs, docs / "reference"}}
    pages |= {*docs.glob("*/README.md")}
    targets = [target.partition("#")[0] for target, _ in links((docs / "README.md").read_text())]
    named = {docs / target for target in targets if not target.startswith("../")}

    assert named == pages - {docs / "README.md"}


@pytest.mark.parametrize("block", SQL, ids=[block.splitlines()[0][:60] for block in SQL])
def test_its_sql_runs(connection: Connection, block: str) -> None:
    for role in RoleKind:
        connection.exec_driver_sql(f"CREATE ROLE {role}")
    for day in re.findall(r"DETACH PARTITION task_completed_p(\d{4})(\d\d)(\d\d)", block):
        retention.add_partition(connection, datetime(*map(int, day), tzinfo=UTC))
    if "INSERT INTO task_completed SELECT" in block:
        connection.exec_driver_sql(
            "CREATE TABLE task_completed_strays AS SELECT * FROM task_completed_default"
        )

    connection.exec_driver_sql(re.sub(r"^(BEGIN|COMMIT);$", "", block, flags=re.MULTILINE))


def test_the_privileges_are_enough_and_no_more_than_needed(connection: Connection) -> None:
    for role in RoleKind:
        connection.exec_driver_sql(f"CREATE ROLE {role}")
    connection.exec_driver_sql(GRANTS)

    connection.exec_driver_sql("SET LOCAL ROLE producer")
    task_id = create_task(connection, "t", unique_key="k")
    again = create_task(connection, "t", unique_key="k")
    create_tasks(connection, [NewTask("t"), NewTask("t")])
    outer = create_group(connection, [NewTask("t")])
    create_group(connection, [], then=NewTask("t"), on_failure=NewTask("t"), part_of=outer.id)
    connection.exec_driver_sql("SELECT task_create('t')")
    connection.exec_driver_sql("SET LOCAL ROLE worker")
    heartbeats.write_heartbeat(connection, owner="w", node="n", queues=["default"], handlers=["t"])
    scan.find_due(connection, {"default": 1})
    retention.has_strays(connection)
    token = uuid4()
    leader_lease.acquire_lease(
        connection, "scan", holder="h", token=token, rank=1, ttl=timedelta(seconds=1)
    )
    leader_lease.release_lease(connection, "scan", token)
    check_schema(connection)
    cancel_task(connection, task_id)
    connection.exec_driver_sql("SET LOCAL ROLE reader")
    seen = get_task(connection, task_id)

    assert (task_id.created, again.created) == (True, False)
    assert seen is not None
    assert seen.state == "CANCELLED"


def test_the_page_of_the_database_names_each_kind_of_role() -> None:
    assert set(re.findall(r"^\| `([a-z]+)` \|", PAGES["database.md"], re.M)) == set(RoleKind)


def test_what_is_to_be_left_alone_is_a_setting_of_celery_and_is_left_alone() -> None:
    for name in LEAVE_ALONE:
        assert f"`{name}`" in PAGES["configuration.md"]
        assert name in DEFAULTS
        assert name not in celeryconfig()


def test_our_celeryconfig_holds_settings_of_celery_only_and_imports_nothing_of_ours() -> None:
    source = (PROJECT / "celeryconfig.py").read_text()

    assert set(celeryconfig()) <= set(DEFAULTS)
    assert re.findall(r"^(?:from|import) (\S+)", source, re.MULTILINE) == ["__future__"]


def test_the_subjects_of_explain_are_those_of_its_rules() -> None:
    listed = PAGES["troubleshooting.md"].split("| subject |", 1)[1]
    rooms = (PROJECT / "tasks_app" / "domain" / "explain").glob("*.py")
    used = {
        subject
        for room in rooms
        for subject in re.findall(r'(?:ok|warn|fail)\(\s*"([a-z ]+)"', room.read_text())
    }

    assert set(re.findall(r"`([a-z ]+)`", listed)) - {"at_most_once"} == used
    assert len(used) > 10
