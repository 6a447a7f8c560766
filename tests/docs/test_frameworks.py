"""The guides of frameworks show what the examples hold, which the suite runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GUIDES = {
    "fastapi": "fastapi_app/*.py",
    "flask": "flask_app/*.py",
    "litestar": "litestar_app/*.py",
    "scripts": "script.py",
}
BLOCK = re.compile(r"```python\n# (?:shop/)?\w+\.py\n(.*?)```", re.DOTALL)
"""Of a file: its name is the first line."""


@pytest.mark.parametrize("guide", GUIDES)
def test_each_line_of_a_guides_files_is_in_its_example(guide: str) -> None:
    page = (ROOT / "docs/frameworks" / f"{guide}.md").read_text()
    sources = [path.read_text() for path in (ROOT / "examples").glob(GUIDES[guide])]
    known = {line for source in sources for line in source.splitlines()}
    package = f"from {GUIDES[guide].partition('/')[0]}."
    shown = [
        line.replace("from shop.", package)
        for block in BLOCK.findall(page)
        for line in block.splitlines()
    ]

    assert len(shown) > 15
    assert [line for line in shown if line not in known] == []


def test_the_services_are_those_of_an_application() -> None:
    page = (ROOT / "docs/frameworks/README.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    services = yaml.safe_load(block)["services"]

    assert list(services) == ["migrate", "web", "worker", "beat"]
    assert services["worker"]["command"].startswith("celery -A tasks_app worker")
    for each in services.values():
        assert {"TASKS_APP_DATABASE_URL", "TASKS_APP_IMPORTS"} <= each["environment"].keys()


def test_every_guide_is_in_the_contents() -> None:
    contents = (ROOT / "docs/frameworks/README.md").read_text()
    pages = {path.stem for path in (ROOT / "docs/frameworks").glob("*.md")} - {"README"}

    assert pages == {*GUIDES, "django"}
    assert all(f"({page}.md)" in contents for page in pages)
