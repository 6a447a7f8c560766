"""Files for systemd, Kubernetes, Prometheus and Grafana."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tasks_app.broker.worker_pool import PATIENCE_S
from tasks_app.cli.serving import PORT
from tasks_app.domain.durations import parse_duration
from tasks_app.monitor.metric_catalogue import METRICS, Kind
from tests.docs.reading import PROJECT, anchors, text_of
from tests.environment import run_program

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
    done = run_program([promtool, *arguments], cwd=DEPLOY / "prometheus")
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
    assert shlex.join(container["args"]) == documented(name)
    assert "command" not in container  # it would replace the image's tini
    probe = container["livenessProbe"]
    assert probe["exec"]["command"] == ["tasks-app", "healthz", "--role", name]
    promised = yaml.safe_load(
        re.findall(r"```yaml\n(.*?)```", text_of("docs/operations/processes.md"), re.DOTALL)[0]
    )["containers"][0]["livenessProbe"]
    assert {**probe, "exec": None} == {**promised, "exec": None}


def test_the_image_has_an_init_and_compose_keeps_it() -> None:
    image, compose = text_of("deploy/Dockerfile"), text_of("docker-compose.yml")
    assert "install --yes --no-install-recommends tini" in image
    assert re.findall(r"^ENTRYPOINT (.*)", image, re.MULTILINE) == ['["tini", "--"]']
    assert "entrypoint:" not in compose


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
    done = run_program([analyze, "verify", "--man=no", *units])

    ours = [line for line in done.stderr.splitlines() if "tasks-app" in line]
    assert ours == []


GRAFANA = json.loads(text_of("deploy/grafana/tasks_app.json"))
PANELS = GRAFANA["panels"]
KINDS = {"stat", "timeseries", "table"}


def missing(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """Return what of ours their schema does not know: it did not come back."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [
            lost
            for key, value in ours.items()
            for lost in missing(value, theirs.get(key), f"{where}.{key}")
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [lost for n, (a, b) in pairs for lost in missing(a, b, f"{where}[{n}]")]
    return [] if ours == theirs else [where]


def test_their_schema_knows_all_of_it() -> None:
    back = JSONEncoder().encode(Dashboard.from_json(GRAFANA))
    assert missing(GRAFANA, json.loads(back)) == []


def test_the_comparison_finds_what_the_schema_does_not_know() -> None:
    wrong = {**GRAFANA, "pannels": [], "panels": [{**PANELS[0], "gridpos": {}}]}
    back = json.loads(JSONEncoder().encode(Dashboard.from_json(wrong)))
    assert set(missing(wrong, back)) == {".pannels", ".panels[0].gridpos"}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_is_whole(panel: dict[str, Any]) -> None:
    (source,) = GRAFANA["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    assert panel["type"] in KINDS
    assert panel["datasource"] == {"type": "prometheus", "uid": f"${{{source['name']}}}"}
    refs = [target["refId"] for target in panel["targets"]]
    assert refs == sorted(set(refs))
    assert set(panel["gridPos"]) == {"x", "y", "w", "h"}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_asks_for_what_is_exported(panel: dict[str, Any]) -> None:
    for each in panel["targets"]:
        names = names_of(each["expr"])
        assert names
        assert names <= EXPORTED.keys()
        legend = set(re.findall(r"{{(\w+)}}", each["legendFormat"]))
        assert all(legend <= EXPORTED[name] for name in names)


@pytest.mark.test_all
def test_prometheus_can_read_every_query(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    queries = [target["expr"] for panel in PANELS for target in panel["targets"]]
    rules = [{"record": f"a:{n}", "expr": query} for n, query in enumerate(queries)]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = run_program([promtool, "check", "rules", str(path)])
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        assert all(x < 24 for x, _ in cells)
        taken |= cells
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


FOLDER = PROJECT / "deploy/kubernetes"
VERSIONS = ("1.28", kubernetes_validate.latest_version())
KNOWN = {"apps/v1", "v1"}
FOREIGN = {"keda.sh/v1alpha1"}
"""Their schema is not Kubernetes'."""
DOCUMENTS = [
    pytest.param(document, id=f"{path.stem} {document['kind']}")
    for path in sorted(FOLDER.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_all_of_it(document: dict[str, Any], version: str) -> None:
    if document["apiVersion"] in FOREIGN:
        pytest.skip(
            "KEDA's objects are not validated: they need its own schemas, which no package brings"
        )
    assert document["apiVersion"] in KNOWN
    kubernetes_validate.validate(document, version, strict=True)


def test_the_schema_is_strict() -> None:
    document = yaml.safe_load(Path(FOLDER / "worker.yaml").read_text())
    document["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[0], strict=True)


def test_the_dashboard_is_reached_where_it_listens() -> None:
    deployment, service = yaml.safe_load_all(text_of("deploy/kubernetes/dashboard.yaml"))
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (port,) = container["ports"]
    assert container["command"] == ["tasks-app", "dashboard", "--host", "0.0.0.0"]
    assert service["spec"]["ports"] == [{"port": port["containerPort"]}]
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": port["containerPort"]}
    assert spec["terminationGracePeriodSeconds"] >= 10


EXPORTED = {
    metric.name + suffix: {*metric.labels, *({"le"} if suffix == "_bucket" else ())}
    for metric in METRICS
    for suffix in (("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",))
}


def names_of(query: str) -> set[str]:
    return set(re.findall(r"\btasks_app_\w+", query))
