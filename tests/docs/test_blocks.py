"""Every block of code in every document: it parses, and what it names of ours is there.

Blocks that are also run: those of README.md, docs/tutorial.md, docs/testing.md, docs/retries.md,
docs/from/, those between sitting marks (test_sitting.py), and the SQL of docs/operations/. Those of
docs/frameworks/ are lines of examples/, which the suite runs. Others are only read, here.
"""

from __future__ import annotations

import ast
import configparser
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tasks_app import Settings
from tasks_app.runtime.handlers.registry import HANDLERS
from tests.cases import in_one_test
from tests.docs.reading import DOCUMENTS, blocks, text_of

pages = in_one_test("document", DOCUMENTS)
READ: dict[str, Callable[[str], Any]] = {
    "yaml": lambda block: list(yaml.safe_load_all(block)),
    "toml": tomllib.loads,
    "ini": lambda block: configparser.RawConfigParser(strict=False).read_string(f"[top]\n{block}"),
    "json": json.loads,
}
OUTSIDE = re.compile(r"TASKS_APP_(TEST_\w+|COMPOSE_\w+)$")
"""Of the suite and of docker-compose.yml; no settings."""


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Modules of ours with the names that are taken from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if _ours(alias.name))
        elif isinstance(node, ast.ImportFrom) and _ours(node.module or ""):
            yield from ((node.module or "", alias.name) for alias in node.names)


def parsed(block: str) -> ast.AST:
    """Of a part of a file, of a function's body, or of a signature."""
    signature = re.sub(r"^(?:await |@|\w+\.)?(\w+)(?=\()", r"def \1", block.strip())
    for source in (block, f"if True:\n{block}", f"{signature}: ..."):
        with suppress(SyntaxError):
            return ast.parse(source)
    return ast.parse(block)


def _ours(module: str) -> bool:
    return module.partition(".")[0] == "tasks_app"


def _there(module: str, name: str) -> bool:
    if find_spec(module) is None:
        return False
    if not name or hasattr(import_module(module), name):
        return True
    return find_spec(f"{module}.{name}") is not None


@pages
def test_python_parses_and_imports_what_is_there(document: Path) -> None:
    trees = [parsed(block) for block in blocks(document.read_text(), "python")]
    lost = [each for tree in trees for each in imported(tree) if not _there(*each)]

    assert lost == []


@pages
@in_one_test("language", READ)
def test_files_of_settings_parse(document: Path, language: str) -> None:
    for block in blocks(document.read_text(), language):
        READ[language](block)


@pages
def test_every_variable_is_a_setting(document: Path) -> None:
    named = set(re.findall(r"\bTASKS_APP_[A-Z_]*[A-Z]\b(?!\*|_|…)", document.read_text()))
    known = {
        str(field.validation_alias or f"TASKS_APP_{name.upper()}")
        for name, field in Settings.model_fields.items()
    }

    assert {name for name in named - known if not OUTSIDE.match(name)} == set()


def test_a_block_that_names_what_is_gone_would_be_seen() -> None:
    code = "from tasks_app import gone, handler\nimport tasks_app.nowhere\nfrom os import path"
    found = list(imported(ast.parse(code)))

    assert [each for each in found if not _there(*each)] == [
        ("tasks_app", "gone"),
        ("tasks_app.nowhere", ""),
    ]


def test_the_policies_of_retries_are_what_its_comments_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HANDLERS, "specs", {})
    for block in blocks(text_of("docs/retries.md"), "python"):
        exec(compile(block, "docs/retries.md", "exec"), {})
    declared = HANDLERS.specs
    attempts = {name: spec.max_attempts for name, spec in declared.items()}

    assert attempts == {
        "report.build": 3,
        "order.export": 8,
        "cache.warm": 5,
        "stock.push": 5,
        "feed.pull": 12,
        "price.fetch": 3,
    }
    assert declared["order.export"].retry.wait(7, Random()) == timedelta(days=2)
    assert (
        timedelta(minutes=1)
        < declared["stock.push"].retry.wait(3, Random())
        < timedelta(seconds=66)
    )
