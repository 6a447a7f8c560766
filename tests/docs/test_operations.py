"""What the pages for operators say."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import yaml
from celery.app.defaults import DEFAULTS
from sqlalchemy import Connection

from tasks_app import NewTask, cancel_task, create_group, create_task, create_tasks, get_task
from tasks_app.broker.worker_pool import PATIENCE_S
from tasks_app.domain.alerts import RULE_EXAMPLES
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import parse_duration
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
    *("worker_prefetch_multiplier", "accept_content", "beat_scheduler", "worker_consumer"),
    *("beat_schedule", "broker_transport_options"),
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


SOURCE = text_of("docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(SOURCE)["services"]
OURS = ("worker", "beat", "flower")
IN_PROFILES = ("dashboard", "metrics", "prometheus", "grafana")
SECRETS = (
    *("SUPERUSER_PASSWORD", "OWNER_PASSWORD", "WORKER_PASSWORD"),
    *("BROKER_PASSWORD", "FLOWER_BASIC_AUTH"),
)


def documented(name: str, page: str) -> str:
    """The command of a process as the table of a document prints it, without its environment."""
    (command,) = re.findall(rf"^\| [^|]+\| `[^`]*?(celery -A tasks_app {name}[^`]*)`", page, re.M)
    return command


def test_it_has_exactly_these_services() -> None:
    assert list(SERVICES) == ["postgres", "valkey", "migrate", *OURS, *IN_PROFILES]
    profiles = {name for name, service in SERVICES.items() if "profiles" in service}
    assert profiles == set(IN_PROFILES)


@pytest.mark.parametrize("name", OURS)
def test_commands_are_the_documented_ones(name: str) -> None:
    page = text_of("docs/operations/processes.md")
    assert shlex.join(SERVICES[name]["command"]) == documented(name, page)


@pytest.mark.parametrize("name", ["worker", "beat"])
def test_commands_are_those_of_the_readme(name: str) -> None:
    assert f"\n{shlex.join(SERVICES[name]['command'])} " in text_of("README.md")


def test_the_schema_is_migrated_once_before_anything_of_ours_starts() -> None:
    migrate = SERVICES["migrate"]

    assert migrate["command"] == [
        *("sh", "-c"),
        "tasks-app migrate && tasks-app grants worker --role tasks_app_worker --apply",
    ]
    assert migrate["restart"] == "no"
    assert migrate["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in OURS:
        assert SERVICES[name]["depends_on"] == {
            "migrate": {"condition": "service_completed_successfully"},
            "valkey": {"condition": "service_healthy"},
        }


@pytest.mark.parametrize("name", ["postgres", "valkey", *OURS])
def test_what_stays_is_watched(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] in ("CMD", "CMD-SHELL")
    assert {"interval", "timeout", "retries"} <= check.keys()
    assert SERVICES[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", ["postgres", *OURS])
def test_what_has_something_to_finish_is_given_time(name: str) -> None:
    assert re.fullmatch(r"\d+[sm]", SERVICES[name]["stop_grace_period"])


def test_no_secret_has_a_default() -> None:
    used = re.findall(r"\$\{([A-Z_]+)(:\?|:-|\})", re.sub(r"(?m)^\s*#.*$", "", SOURCE))
    assert {name for name, how in used if how == ":?"} == set(SECRETS)
    assert {name for name, how in used if how != ":?"} == {
        "TASKS_APP_IMPORTS",
        "DASHBOARD_AUTH",  # without it the dashboard refuses to start
        "TASKS_APP_ALERT_WEBHOOK",
    }
    for name in SECRETS:
        assert f"`{name}`" in text_of("docs/operations/processes.md")


def test_only_pages_are_published_and_only_to_this_machine() -> None:
    published = {name: s["ports"] for name, s in SERVICES.items() if "ports" in s}
    assert published == {
        "flower": ["127.0.0.1:5555:5555"],
        "dashboard": ["127.0.0.1:5580:5580"],
        "grafana": ["127.0.0.1:3000:3000"],
    }
    assert SERVICES["flower"]["environment"]["FLOWER_BASIC_AUTH"].startswith(
        "${FLOWER_BASIC_AUTH:?"
    )


@pytest.mark.parametrize(
    ("name", "role"),
    [("migrate", "owner"), ("beat", "owner"), ("worker", "worker"), ("flower", None)],
)
def test_every_process_has_its_role_and_no_other_password(name: str, role: str | None) -> None:
    environment = SERVICES[name]["environment"]
    url = environment.get("TASKS_APP_DATABASE_URL")

    assert {"TASKS_APP_BROKER_URL", "TASKS_APP_IMPORTS"} <= environment.keys()
    assert "@valkey:" in environment["TASKS_APP_BROKER_URL"]
    if role is None:
        assert url is None
    else:
        assert url.startswith(f"postgresql+psycopg://tasks_app_{role}:${{{role.upper()}_PASSWORD:?")
        assert "@postgres/" in url
    passwords = {f"{each}_PASSWORD" for each in ("SUPERUSER", "OWNER", "WORKER")}
    told = {each for each in passwords if each in str(environment)}
    assert told == ({f"{role.upper()}_PASSWORD"} if role else set())


def test_the_roles_are_made_with_the_database() -> None:
    (mounted,) = (v for v in SERVICES["postgres"]["volumes"] if v.startswith("./"))
    source, target, mode = mounted.split(":")
    assert text_of(source)
    assert (target, mode) == ("/docker-entrypoint-initdb.d/roles.sql", "ro")
    assert {"OWNER_PASSWORD", "WORKER_PASSWORD"} <= SERVICES["postgres"]["environment"].keys()


def test_the_broker_evicts_nothing_and_keeps_nothing() -> None:
    command = " ".join(SERVICES["valkey"]["command"])
    assert "--maxmemory-policy noeviction" in command
    assert "--appendonly no" in command


def test_the_image_does_not_run_as_root() -> None:
    """By number: Kubernetes cannot tell whether a name is root."""
    lines = text_of("deploy/Dockerfile").splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    made = [i for i, line in enumerate(lines) if line.startswith(("RUN ", "COPY "))]
    assert users == ["10001"]
    assert lines.index("USER 10001") > max(made)
    assert any("useradd" in lines[i] and "--uid 10001" in lines[i] for i in made)


def test_a_worker_lets_go_before_it_is_killed() -> None:
    worker = SERVICES["worker"]
    grace = parse_duration(worker["environment"]["TASKS_APP_STOP_GRACE"])
    killed_after = parse_duration(worker["stop_grace_period"])
    assert killed_after - grace >= timedelta(seconds=2 * PATIENCE_S + 5)


def test_the_image_is_made_of_pinned_wheels_and_of_nothing_private() -> None:
    pins = r"(?m)^([a-z0-9-]+(?:\[.*\])?==\S+)"
    image, dev = (set(re.findall(pins, text_of(f"requirements/{n}.txt"))) for n in ("image", "dev"))
    source = text_of("deploy/Dockerfile")
    assert len(image) > 30
    assert image <= dev
    assert text_of("requirements/image.txt").count("--hash=sha256:") > len(image)
    assert all("--require-hashes" in line or "--no-deps" in line
               for line in source.splitlines() if "pip install" in line)  # fmt: skip
    assert text_of(".dockerignore").splitlines()[1] == "*"
    assert "!.env" not in text_of(".dockerignore")
