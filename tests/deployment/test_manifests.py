"""Manifests against the schema of Kubernetes, and the dashboard's among the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.docs.reading import PROJECT, text_of

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
