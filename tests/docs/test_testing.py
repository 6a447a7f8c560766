"""The recipes of docs/testing.md are the tests of the example, word for word."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import Connection

import tasks_app.testing
from tasks_app import create_task
from tasks_app.testing import plugin
from tasks_app.testing.creation import Where
from tests.docs.reading import PROJECT, blocks, section, text_of

PAGE = text_of("docs/testing.md")
EXAMPLE = "\n".join(path.read_text() for path in (PROJECT / "examples/testing").glob("*.py"))


@pytest.mark.parametrize("block", blocks(PAGE, "python"))
def test_each_block_is_code_of_the_example(block: str) -> None:
    assert block.strip() in EXAMPLE


def test_there_are_ten_recipes_each_with_code() -> None:
    recipes = section(PAGE, "Ten recipes").split("\n### ")[1:]

    assert [recipe.split(".")[0] for recipe in recipes] == [str(n) for n in range(1, 11)]
    assert all("```python" in recipe for recipe in recipes)


def test_each_test_of_the_example_but_one_is_a_recipe() -> None:
    tests = set(re.findall(r"^def (test_\w+)", EXAMPLE, re.M))

    assert {name for name in tests if name not in PAGE} == {
        "test_a_payload_that_a_producer_may_not_send"
    }


def test_a_failing_assertion_says_what_the_page_shows(connection: Connection) -> None:
    options: Any = {"biz_key": "order:7"}
    create_task(connection, "points.grant", {"order_id": 7}, **options)
    create_task(connection, "card.charge", {"order_id": 7}, queue="payments", **options)
    create_task(connection, "review.ask", {"order_id": 7}, delay="2d", **options)

    with pytest.raises(AssertionError) as failure:
        tasks_app.testing.assert_created(connection, "card.charge", {"order_id": 8})

    (shown,) = blocks(PAGE, "text")
    said = re.sub(r"\((\d+),", "(1,", f"AssertionError: {failure.value}\n")
    assert said == re.sub(r"\((\d+),", "(1,", shown)


def test_it_names_each_fixture() -> None:
    fixtures = {name for name in vars(plugin) if name.startswith("tasks_app_")}

    assert fixtures == set(re.findall(r"^\| `(tasks_app_\w+)` \|", PAGE, re.M))


def test_it_names_each_name_of_the_kit() -> None:
    records = {"ContextOptions", "Where", "TaskRun", "Drained"}

    assert [n for n in tasks_app.testing.__all__ if n not in PAGE and n not in records] == []


def test_it_names_what_can_be_asserted() -> None:
    assert " ".join(Where.__annotations__) in PAGE
