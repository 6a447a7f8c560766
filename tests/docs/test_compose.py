"""The compose file runs the documented commands, safely. No engine is needed to know that."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import yaml

from tests.docs.reading import text_of

SOURCE = text_of("docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(SOURCE)["services"]
OURS = ("worker", "beat", "flower")
SECRETS = ("DATABASE_PASSWORD", "BROKER_PASSWORD", "FLOWER_BASIC_AUTH")


def documented(name: str, page: str) -> str:
    """The command of a process as the table of a document prints it, without its environment."""
    (command,) = re.findall(rf"^\| [^|]+\| `[^`]*?(celery -A tasks_app {name}[^`]*)`", page, re.M)
    return command


def test_it_has_exactly_these_services() -> None:
    assert list(SERVICES) == ["postgres", "valkey", "migrate", *OURS]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("document", ["README.md", "docs/operations.md"])
def test_commands_are_the_documented_ones(name: str, document: str) -> None:
    assert shlex.join(SERVICES[name]["command"]) == documented(name, text_of(document))


def test_the_schema_is_migrated_once_before_anything_of_ours_starts() -> None:
    migrate = SERVICES["migrate"]

    assert migrate["command"] == ["tasks-app", "migrate"]
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
    assert {name for name, how in used if how != ":?"} == {"TASKS_APP_IMPORTS"}
    for name in SECRETS:
        assert f"`{name}`" in text_of("docs/operations.md")


def test_only_flower_is_published_and_only_to_this_machine() -> None:
    published = {name: s["ports"] for name, s in SERVICES.items() if "ports" in s}

    assert published == {"flower": ["127.0.0.1:5555:5555"]}
    assert SERVICES["flower"]["environment"]["FLOWER_BASIC_AUTH"].startswith(
        "${FLOWER_BASIC_AUTH:?"
    )


@pytest.mark.parametrize("name", ["migrate", *OURS])
def test_every_process_of_ours_knows_database_broker_and_handlers(name: str) -> None:
    environment = SERVICES[name]["environment"]

    assert {
        f"TASKS_APP_{n}" for n in ("DATABASE_URL", "BROKER_URL", "IMPORTS")
    } <= environment.keys()
    assert "@postgres/" in environment["TASKS_APP_DATABASE_URL"]
    assert "@valkey:" in environment["TASKS_APP_BROKER_URL"]


def test_the_broker_evicts_nothing_and_keeps_nothing() -> None:
    command = " ".join(SERVICES["valkey"]["command"])

    assert "--maxmemory-policy noeviction" in command
    assert "--appendonly no" in command


def test_the_image_does_not_run_as_root() -> None:
    lines = text_of("Dockerfile").splitlines()

    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users == ["tasks"]
    assert lines.index("USER tasks") > max(
        i for i, line in enumerate(lines) if line.startswith(("RUN ", "COPY "))
    )
