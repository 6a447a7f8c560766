"""What a document points to is there."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from dev.verification import configurations
from tasks_app.cli.group import group
from tests.cases import in_one_test
from tests.docs.reading import (
    DOCUMENTS,
    PROJECT,
    anchors,
    blocks,
    links,
    models,
    named_files,
    named_tests,
)

pages = in_one_test("document", DOCUMENTS)
DECISIONS = [path for path in DOCUMENTS if path.parent == PROJECT / "docs" / "decisions"]
INVITED = re.compile(r"tasks-app ([a-z](?:[a-z-]*[a-z])?)([^`|;&#\n]*)")


def _has_test(file: Path, name: str) -> bool:
    """Whether the file defines or imports it: several files share some proofs."""
    here = rf"(?:def|class) {name}\b|^(?:from tests\..* import |    )(?:\w+, )*{name}\b"
    return file.is_file() and re.search(here, file.read_text(), re.MULTILINE) is not None


@pytest.mark.test_all
@pages
def test_links_lead_to_files(document: Path) -> None:
    lost = [
        target
        for target, _ in links(document.read_text())
        if not (document.parent / target.partition("#")[0]).exists()
    ]

    assert lost == []


@pages
def test_links_lead_to_headings(document: Path) -> None:
    lost = []
    for target, _ in links(document.read_text()):
        file, _, anchor = target.partition("#")
        page = document.parent / file if file else document
        if anchor and page.suffix == ".md" and anchor not in anchors(page.read_text()):
            lost.append(target)

    assert lost == []


@pages
def test_every_proof_is_a_test(document: Path) -> None:
    page = document.read_text()
    titled = [(document.parent / target, title) for target, title in links(page) if title]
    named = [(PROJECT / file, name) for file, name in named_tests(page)]

    lost = [f"{file}::{name}" for file, name in (*titled, *named) if not _has_test(file, name)]

    assert lost == []


@in_one_test("decision", DECISIONS)
def test_every_file_that_a_decision_names_is_there(decision: Path) -> None:
    lost = [
        name
        for name in named_files(decision.read_text())
        if not any((root / name).exists() for root in (PROJECT, PROJECT / "tasks_app"))
    ]

    assert lost == []


@pages
def test_every_model_that_is_named_is_a_configuration(document: Path) -> None:
    known = {configuration.name for configuration in configurations.ALL}

    assert set(models(document.read_text())) <= known


@pages
def test_every_command_that_is_printed_exists_with_its_options(document: Path) -> None:
    page = document.read_text()
    code = "\n".join((*re.findall(r"`([^`\n]+)`", page), *blocks(page, r"(?:bash|console)")))

    for name, rest in INVITED.findall(code):
        command = group.get_command(click.Context(group), name)
        assert command is not None, f"tasks-app {name}"
        if isinstance(command, click.Group) and rest.split():
            command = command.commands.get(rest.split()[0])
            assert command is not None, f"tasks-app {name}{rest}"
        known = {option for parameter in command.params for option in parameter.opts}
        asked = set(re.findall(r"(?<!\S)\[?(--?[a-z][a-z-]*)", rest))

        assert asked <= known or name == "demo", f"tasks-app {name}{rest}"


@pages
def test_no_document_knows_where_it_was_written(document: Path) -> None:
    assert not re.search(
        r"/(work|root|home|tmp)/|127\.0\.0\.1:(?!5580/)\d{4,5}/", document.read_text()
    )
