"""The guide to Kubernetes, compared with the manifests, and its Job with Kubernetes' schema."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import yaml

from tests.docs.reading import PROJECT, blocks, first_column
from tests.how_to.pages import page

FOLDER = PROJECT / "deploy/kubernetes"
PAGE = page("kubernetes")
SHELL = "\n".join(blocks(PAGE, "bash"))
(JOB,) = (yaml.safe_load(block) for block in blocks(PAGE, "yaml"))


def pod(name: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text())
    spec: dict[str, Any] = next(documents)["spec"]["template"]["spec"]
    return spec


def secrets(name: str) -> set[str]:
    (container,) = pod(name)["containers"]
    return {each["secretRef"]["name"] for each in container["envFrom"]}


def test_kubernetes_knows_the_job() -> None:
    kubernetes_validate.validate(JOB, kubernetes_validate.latest_version(), strict=True)


def test_the_job_is_the_owners_like_beat() -> None:
    spec = JOB["spec"]["template"]["spec"]
    (container,), (beat,) = spec["containers"], pod("beat")["containers"]
    assert container["envFrom"] == beat["envFrom"]
    assert container["image"] == beat["image"]
    assert container["securityContext"] == beat["securityContext"]
    assert container["command"] == ["tasks-app", "migrate"]


def test_it_makes_and_explains_the_secrets_that_are_read() -> None:
    read = {s for name in ("worker", "beat", "metrics", "dashboard") for s in secrets(name)}
    assert set(re.findall(r"create secret generic (\S+)", SHELL)) == read
    assert set(first_column(PAGE)) == read


def test_it_applies_every_manifest() -> None:
    applied = set(re.findall(r"-f deploy/kubernetes/(\S+)", SHELL))
    assert applied == {path.name for path in FOLDER.iterdir()}


def test_what_it_says_of_the_end_is_in_the_worker() -> None:
    spec = pod("worker")
    (container,) = spec["containers"]
    assert spec["terminationGracePeriodSeconds"] == 120
    assert {"name": "TASKS_APP_STOP_GRACE", "value": "100s"} in container["env"]
    assert "120 s in `worker.yaml`" in PAGE
    assert "`TASKS_APP_STOP_GRACE` (100 s)" in PAGE
    assert container["args"][0] == "celery"
