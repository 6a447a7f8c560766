"""The dashboard of Grafana: of their own schema, and asking only for what is exported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.deployment.exported import EXPORTED, names_of
from tests.docs.reading import text_of

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
    done = subprocess.run(
        [promtool, "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
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
