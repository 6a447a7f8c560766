"""Which paths of payloads and results rules hide."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tasks_app import Settings
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


@pytest.mark.parametrize("rules", ["a b", ".a", "a..b", "x:", ":a"])
def test_what_is_no_path_is_refused_at_the_start(rules: str) -> None:
    with pytest.raises(ValidationError, match="use paths"):
        Settings(masked_paths=rules)
