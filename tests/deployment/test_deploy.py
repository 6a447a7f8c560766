"""What lies in ``deploy/``: read by promtool and systemd where they are, compared with the code."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks_app.broker.worker_pool import PATIENCE_S
from tasks_app.cli.serving import PORT
from tasks_app.domain.durations import parse_duration
from tests.deployment.exported import EXPORTED, names_of
from tests.docs.reading import PROJECT, anchors, text_of

DEPLOY = PROJECT / "deploy"
RULES = yaml.safe_load(text_of("deploy/prometheus/rules.yml"))["groups"][0]["rules"]


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text_of(f"deploy/kubernetes/{name}.yaml")))


def pod(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    spec = manifests(name)[0]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def unit(name: str) -> str:
    return text_of(f"deploy/systemd/{name}.service")


def documented(process: str) -> str:
    (command,) = re.findall(
        rf"^\| {process} \| `([^`]+)`", text_of("docs/operations/processes.md"), re.MULTILINE
    )
    return str(command)


@pytest.mark.test_all
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
    ],
    ids=" ".join,
)
def test_promtool_finds_no_fault(arguments: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")

    done = subprocess.run(
        [promtool, *arguments],
        cwd=DEPLOY / "prometheus",
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_names_what_is_exported_and_a_page_that_is_there(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook"].partition("#")

    assert names_of(rule["expr"]) <= EXPORTED.keys()
    assert not anchor or anchor in anchors(text_of(page))
    assert rule["labels"]["severity"] in {"critical", "warning"}


@pytest.mark.parametrize("name", ["worker", "beat"])
def test_kubernetes_runs_the_documented_commands_and_probes(name: str) -> None:
    _, container = pod(name)

    assert shlex.join(container["command"]) == documented(name)
    probe = container["livenessProbe"]
    assert probe["exec"]["command"] == ["tasks-app", "healthz", "--role", name]
    promised = yaml.safe_load(
        re.findall(r"```yaml\n(.*?)```", text_of("docs/operations/processes.md"), re.DOTALL)[0]
    )["containers"][0]["livenessProbe"]
    assert {**probe, "exec": None} == {**promised, "exec": None}


def test_a_pod_of_workers_has_time_to_let_go() -> None:
    spec, container = pod("worker")
    (grace,) = (e["value"] for e in container["env"] if e["name"] == "TASKS_APP_STOP_GRACE")

    least = parse_duration(grace).total_seconds() + PATIENCE_S
    assert spec["terminationGracePeriodSeconds"] >= least


@pytest.mark.parametrize("name", ["worker", "beat", "metrics", "dashboard"])
def test_pods_have_few_rights(name: str) -> None:
    spec, container = pod(name)

    assert spec["securityContext"] == {"runAsNonRoot": True}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_metrics_are_where_their_readers_look() -> None:
    _, container = pod("metrics")
    (scrape,) = yaml.safe_load(text_of("deploy/prometheus/prometheus.yml"))["scrape_configs"]
    (keda,) = manifests("keda")

    assert container["ports"] == [{"containerPort": PORT}]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": PORT}
    assert scrape["static_configs"] == [{"targets": [f"127.0.0.1:{PORT}"]}]
    (trigger,) = keda["spec"]["triggers"]
    assert trigger["metadata"]["query"] == "max(tasks_app_oldest_due_seconds)"
    assert keda["spec"]["scaleTargetRef"]["name"] == manifests("worker")[0]["metadata"]["name"]


@pytest.mark.parametrize(
    ("name", "process"),
    [
        ("tasks-app-worker@", "worker"),
        ("tasks-app-beat", "beat"),
        ("tasks-app-metrics", "metrics"),
        ("tasks-app-dashboard", "dashboard"),
    ],
)
def test_systemd_runs_the_documented_commands(name: str, process: str) -> None:
    assert f".venv/bin/{documented(process)}" in unit(name)


def test_systemd_gives_workers_time_to_let_go() -> None:
    worker = unit("tasks-app-worker@")
    (grace,) = re.findall(r"TASKS_APP_STOP_GRACE=(\w+)", worker)
    (stop,) = re.findall(r"TimeoutStopSec=(\d+)", worker)

    assert int(stop) >= parse_duration(grace).total_seconds() + PATIENCE_S
    assert "KillMode=mixed" in worker  # the parent tells its children


@pytest.mark.test_all
def test_systemd_reads_the_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    for path in (DEPLOY / "systemd").glob("*.service"):
        text = re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", path.read_text())
        text = text.replace("User=tasks-app", "User=root")
        (tmp_path / path.name.replace("@", "@a")).write_text(text)

    units = sorted(str(path) for path in tmp_path.iterdir())
    done = subprocess.run(
        [analyze, "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )

    ours = [line for line in done.stderr.splitlines() if "tasks-app" in line]
    assert ours == []
