"""Links, navigation and generated pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from sqlalchemy import Connection, text

from dev.documents import api, commands, lifecycle, schema
from dev.documents.__main__ import OF_THE_DATABASE, OF_THE_SITE, PAGES
from dev.documents.settings import setting_texts
from dev.documents.site.address import address
from dev.documents.site.navigation import OF_THE_SITE as NAMED
from dev.documents.site.navigation import OF_THE_SITE as OF_THE_SITE_OF_NAVIGATION
from dev.documents.site.navigation import entries, on_the_site, trees
from dev.documents.source import class_of, methods
from dev.verification import configurations
from tasks_app import Settings, __all__
from tasks_app.cli.group import group
from tasks_app.domain.tasks.states import TRANSITIONS
from tests.cases import in_one_test
from tests.docs import payload_types
from tests.docs.reading import (
    DOCUMENTS,
    PROJECT,
    anchors,
    blocks,
    first_column,
    links,
    lost_links,
    models,
    named_files,
    named_tests,
    section,
    text_of,
)
from tests.docs.sql_page import FULL, HOT, VERBS, Hot, page
from tests.pool.database import FRESH, Ask, bare_database, filled
from tests.servers import Databases

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


DOCS = PROJECT / "docs"
FOLDERS = sorted({path.parent for path in DOCS.rglob("*.md")})


def listed(folder: Path) -> set[Path]:
    readme = folder / "README.md"
    if not readme.exists():
        return set()
    found = entries(readme.read_text(), own=folder != DOCS)
    return {(folder / target).resolve() for _, target in found}


@pytest.mark.parametrize("folder", FOLDERS, ids=[str(f.relative_to(PROJECT)) for f in FOLDERS])
def test_a_readme_lists_the_pages_of_its_folder(folder: Path) -> None:
    pages = {path for path in DOCUMENTS if path.parent == folder and path.name != "README.md"}
    below = {path / "README.md" for path in folder.iterdir() if (path / "README.md").exists()}
    assert (pages | below) - listed(folder) - listed(DOCS) == set()


def test_the_readme_of_docs_lists_what_only_the_site_has() -> None:
    found = entries(on_the_site(text_of("docs/README.md")), own=False)
    assert {f"reference/{name}.md" for name in OF_THE_SITE_OF_NAVIGATION} <= {
        target for _, target in found
    }


def test_the_readme_of_docs_lists_pages_under_its_headings() -> None:
    shown = trees("docs/README", text_of("docs/README.md"))
    captions = re.findall(r"^:caption: (.*)$", shown, re.MULTILINE)
    assert captions == re.findall(r"^## (.*)$", text_of("docs/README.md"), re.MULTILINE)
    assert "Producing tasks </docs/producing>" in shown
    assert "Overview </README>" in shown


def test_a_page_that_is_listed_by_number_has_its_own_title_in_the_sidebar() -> None:
    table = "# Decisions\n\n| | decision |\n|---|---|\n| [0001](0001-a.md) | A |\n"
    assert "\n/docs/decisions/0001-a\n" in trees("docs/decisions/README", table)


@pytest.mark.parametrize(
    ("page", "there"),
    [
        ("docs/README", "index.html"),
        ("docs/producing", "producing.html"),
        ("docs/from/README", "from/index.html"),
        ("README", "README.html"),
        ("source/tests/conftest.py", "source/tests/conftest.py.html"),
    ],
)
def test_docs_is_the_root_of_the_site(page: str, there: str) -> None:
    assert address(page) == there


FUNCTIONS = {"task_create", "task_pool", "task_group_extend", "task_notify"}
_TABLES = text("""
    SELECT c.relname FROM pg_class c WHERE c.relnamespace = CAST(current_schema AS regnamespace)
      AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition AND c.relname LIKE 'task%'
""")


def test_every_table_and_column_has_a_comment(connection: Connection) -> None:
    assert schema.uncommented(connection) == []


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ("ALTER TABLE task_pending ADD COLUMN colour text", ["task_pending.colour"]),
        ("CREATE TABLE task_colour (name text)", ["task_colour", "task_colour.name"]),
        ("COMMENT ON VIEW task_all IS NULL", ["task_all"]),
    ],
)
def test_one_without_is_named(connection: Connection, change: str, missing: list[str]) -> None:
    connection.exec_driver_sql(change)
    assert schema.uncommented(connection) == missing


def test_links_of_the_page_lead_somewhere(connection: Connection) -> None:
    assert lost_links(PROJECT / "docs/reference/schema.md", schema.page(connection)) == []


def test_no_table_is_left_out(connection: Connection) -> None:
    shown = set(re.findall(r"^## (\w+)$", schema.page(connection), re.MULTILINE)) - FUNCTIONS
    assert set(connection.execute(_TABLES).scalars()) == shown


def test_the_arguments_of_task_create(connection: Connection) -> None:
    shown = section(schema.page(connection), "task_create\n")
    rows = re.findall(r"^\| `(\w+)` \| ([a-z\[\] ]+) \|", shown, re.MULTILINE)
    signature = connection.execute(
        text("SELECT pg_get_function_identity_arguments('task_create'::regproc)")
    ).scalar_one()
    assert [f"{name} {kind}" for name, kind in rows] == signature.split(", ")
    assert set(schema.ARGUMENTS) <= set(first_column(shown))


def test_indexes_are_named_by_their_columns(connection: Connection) -> None:
    """`lease_until` stands in none: what a running task writes would cost an index entry each."""
    definitions = connection.execute(
        text("SELECT indexdef FROM pg_indexes WHERE tablename = 'task_pending'")
    ).scalars()
    assert not [d for d in definitions if "lease_until" in d]


@pytest.fixture(scope="module")
def ask(databases: Databases) -> Iterator[Ask]:
    with (
        bare_database(databases, "sql", FULL) as database,
        filled(database, FRESH, VERBS, FULL) as ask,
    ):
        yield ask


def test_the_page_can_be_written(connection: Connection) -> None:
    assert page(connection).count("\n```sql\n") == len(HOT)


@pytest.mark.parametrize("hot", HOT, ids=lambda hot: hot.title)
def test_a_plan_is_as_promised(ask: Ask, hot: Hot) -> None:
    assert set(ask(hot.title).nodes) == set(hot.plan.split("; "))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_the_one_that_the_code_writes(name: str) -> None:
    assert text_of(f"docs/{name}") == PAGES[name](), "run: make docs"


def test_what_the_site_has_is_not_in_git_and_has_a_heading_that_stands_in() -> None:
    written = {*OF_THE_SITE, *OF_THE_DATABASE, "reference/sql.md"}
    ignored = text_of(".gitignore").splitlines()
    assert written == {f"reference/{name}.md" for name in NAMED}
    assert [name for name in written if f"/docs/{name}" not in ignored] == []
    assert anchors(text_of("docs/reference/README.md")) >= set(NAMED)


def test_every_type_of_payload_arrives_as_its_row_says() -> None:
    assert payload_types.PAGE.read_text() == payload_types.page(), "run: make docs"


def test_every_exported_name_has_a_line() -> None:
    assert sorted(first_column(api.exports_page())) == sorted(__all__)


def test_a_name_without_a_subject_is_refused() -> None:
    with pytest.raises(LookupError, match="brand_new"):
        api.exports_page([*__all__, "brand_new"])


def test_every_setting_has_a_meaning() -> None:
    texts = setting_texts()
    assert [name for name in Settings.model_fields if not texts[name]] == []


@pytest.mark.parametrize(
    ("page", "word"),
    [(api.handler_page, "option"), (api.hooks_page, "field"), (api.context_page, "attribute")],
)
def test_every_row_has_a_meaning(page: Callable[[], str], word: str) -> None:
    assert f"| {word} | type | meaning |" in page()
    assert "|  |\n" not in page()


def test_every_method_of_the_context_is_shown() -> None:
    shown = "\n".join(blocks(api.context_page(), "python")) + api.context_page()
    node = class_of("tasks_app.runtime.handlers.context", "TaskContext")
    assert {n for n in methods(node) if f"ctx.{n}" not in shown} == api.FOR_THE_EXECUTOR


def test_every_command_and_option_is_shown() -> None:
    page = commands.page()
    for name in group.list_commands(click.Context(group)):
        assert f"\n## tasks-app {name}" in page
        assert f"\n| `{name}" in commands.short_page()
    assert page.count("\n## ") > 60
    assert "`--dry-run`" in page


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_that_nobody_writes_it_by_hand(name: str) -> None:
    assert "`make docs`" in text_of(f"docs/{name}").split("\n## ")[0]


def test_the_life_of_a_task_names_every_move() -> None:
    page = lifecycle.page()
    assert all(f"{state} --> {to}: {event}" in page for (state, event), to in TRANSITIONS.items())
