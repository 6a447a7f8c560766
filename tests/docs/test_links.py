"""What a document points to is there."""

from __future__ import annotations

import re
from pathlib import Path

import click

from dev.documents.__main__ import OF_THE_SITE, PAGES
from dev.verification import configurations
from tasks_app.cli.group import group
from tests.cases import in_one_test
from tests.docs.reading import (
    DOCUMENTS,
    PROJECT,
    blocks,
    links,
    lost_links,
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


@pages
def test_links_lead_to_files_and_headings(document: Path) -> None:
    assert lost_links(document, document.read_text()) == []


@in_one_test("name", [*PAGES, *OF_THE_SITE])
def test_links_of_a_page_that_is_written_lead_somewhere(name: str) -> None:
    page = (PAGES | OF_THE_SITE)[name]()

    assert lost_links(PROJECT / "docs" / name, page) == []


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
