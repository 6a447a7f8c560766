"""The compose file runs the documented commands, safely. No engine is needed to know that."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from typing import Any

import pytest
import yaml

from tasks_app.broker.worker_pool import PATIENCE_S
from tasks_app.domain.durations import parse_duration
from tests.docs.reading import text_of

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
def test_every_process_has_the_role_that_it_needs_and_no_other_password(
    name: str, role: str | None
) -> None:
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
