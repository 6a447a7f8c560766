"""Which paths of payloads and results rules hide."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from tasks_app import Settings
from tasks_app.domain.tasks.error_text import cause_of
from tasks_app.domain.tasks.masks import Masks


@pytest.mark.parametrize(
    ("rules", "value", "shown"),
    [
        ("card.number", {"card": {"number": 1, "n": 2}}, {"card": {"number": "***", "n": 2}}),
        ("number", {"card": {"number": 1}}, {"card": {"number": 1}}),
        ("*.pin", {"a": {"pin": 1}, "pin": 2}, {"a": {"pin": "***"}, "pin": 2}),
        (
            "**.pin",
            {"a": [{"b": {"pin": 1}}], "pin": 2},
            {"a": [{"b": {"pin": "***"}}], "pin": "***"},
        ),
        ("a.**", {"a": {"b": 1}, "c": 2}, {"a": "***", "c": 2}),
        ("cards.n", {"cards": [{"n": 1}, {"n": 2}]}, {"cards": [{"n": "***"}, {"n": "***"}]}),
        ("pi?", {"pin": None, "pine": 1}, {"pin": "***", "pine": 1}),
        ("**", [1, 2], "***"),
        ("mail.*:a, shop.pay:b", {"a": 1, "b": 2}, {"a": 1, "b": "***"}),
        ("", {"a": 1}, {"a": 1}),
    ],
)
def test_a_rule_hides_its_path_alone(rules: str, value: Any, shown: Any) -> None:
    assert Masks(rules).value("shop.pay", value) == shown


def test_a_text_loses_what_is_hidden_and_nothing_else() -> None:
    payload = {"card": {"number": 47110815, "owner": "Ann"}, "note": "it's\n"}
    text = "47110815 of Ann: it's"
    assert Masks("card.number").text("t", text, payload) == "*** of Ann: it's"
    assert Masks("x:card.number").text("t", text, payload) == text


@pytest.mark.parametrize(
    "quoted",
    [
        str,
        repr,
        json.dumps,
        partial(json.dumps, ensure_ascii=False),
        lambda each: repr({"k": each}),
    ],
)
def test_it_is_found_in_each_form_of_source_and_of_json(quoted: Callable[[str], str]) -> None:
    secret = 'Zürich "4711"\\\n'
    text = f"refused: {quoted(secret)}!"
    hidden = Masks("a").text("t", text, {"a": secret})
    assert "rich" not in hidden
    assert "***" in hidden


def test_of_a_text_that_was_cut_the_beginning_of_a_value_goes_too() -> None:
    cause = cause_of(ValueError("x" * 1_990 + "4711-0815-secret"))
    hidden = Masks("a").text("t", cause.message, {"a": "4711-0815-secret", "b": "xxx"})
    assert hidden == "x" * 1_990 + "***…"
    assert Masks("a").text("t", "a text…", {"a": "texture", "b": 1}) == "a ***…"
    assert Masks("a").text("t", "a text…", {"a": "another"}) == "a text…"


def test_what_pydantic_quotes_of_a_long_value_goes_too() -> None:
    class Card(BaseModel):
        number: int

    with pytest.raises(ValidationError) as refused:
        Card.model_validate({"number": "secret" * 20})
    text = Masks("a").text("t", str(refused.value), {"a": "secret" * 20})
    assert "secret" not in text
    assert "input_value=***, input_type=str" in text


@pytest.mark.parametrize("rules", ["a b", ".a", "a..b", "x:", ":a", "cards[0].number", "a[*]"])
def test_what_is_no_path_is_refused_at_the_start(rules: str) -> None:
    with pytest.raises(ValidationError, match="use paths"):
        Settings(masked_paths=rules)
