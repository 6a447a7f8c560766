"""The pages that come from the code are those that it writes today."""

from __future__ import annotations

from collections.abc import Callable

import click
import pytest

from dev.documents import api, commands, lifecycle
from dev.documents.__main__ import OF_THE_DATABASE, OF_THE_SITE, PAGES
from dev.documents.settings import setting_texts
from dev.documents.site.navigation import OF_THE_SITE as NAMED
from dev.documents.source import class_of, methods
from tasks_app import Settings, __all__
from tasks_app.cli.group import group
from tasks_app.domain.tasks.states import TRANSITIONS
from tests.docs import payload_types
from tests.docs.reading import anchors, blocks, first_column, text_of


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
