"""Patches of payloads, and what is told of those that a model refuses."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.operations import (
    apply_patch,
    check_patched_payload,
    parse_patch,
    paths_of_patch,
)
from tasks_app.domain.tasks.payload_type import PayloadType, payload_type_of


class Mail(BaseModel):
    """A payload whose validator tells what it was given."""

    to: str
    copies: dict[str, int] = {}

    @field_validator("to")
    @classmethod
    def has_an_at(cls, to: str) -> str:
        if "@" not in to:
            raise ValueError(f"{to} is no address")
        return to


SPEC = HandlerSpec("mail", lambda: None, payload_type=PayloadType(Mail))


@pytest.mark.parametrize(
    ("payload", "patch", "after"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_objects_are_merged_and_null_removes(payload: Any, patch: Any, after: Any) -> None:
    """Among the examples of RFC 7396's appendix, those of objects."""
    before = repr(payload)

    assert apply_patch(payload, patch) == after
    assert repr(payload) == before


def test_paths_make_a_patch() -> None:
    assert parse_patch({"a.b": 1, "a.c": [2], "d": None}) == {"a": {"b": 1, "c": [2]}, "d": None}


@pytest.mark.parametrize("paths", [("a", "a.b"), ("a.b", "a"), ("a.b.c", "a.b"), ("",), ("a.",)])
def test_paths_in_each_others_way_are_refused(paths: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSelectionError, match="cannot be set"):
        parse_patch(dict.fromkeys(paths, 1))


def test_the_paths_of_a_patch_are_told_without_its_values() -> None:
    assert list(paths_of_patch({"a": {"b": "secret"}, "c": {}})) == ["payload.a.b", "payload.c"]


def test_what_the_model_takes_is_written_as_it_is() -> None:
    assert (
        check_patched_payload("mail", {"to": "a@b", "more": 1}, SPEC, 100)
        == '{"to":"a@b","more":1}'
    )


def test_what_is_given_as_it_is_stored_is_not_wrapped_once_more() -> None:
    either = HandlerSpec("t", print, payload_type=payload_type_of(dict[str, int] | list[int]))

    assert check_patched_payload("t", {"value": [1]}, either, 100) == '{"value":[1]}'
    with pytest.raises(InvalidSelectionError, match="its handler refuses the payload"):
        check_patched_payload("t", {"a": 1}, either, 100)


@pytest.mark.parametrize(
    ("payload", "where"),
    [
        ({"to": "secret"}, "payload.to"),
        ({"to": "a@b", "copies": {"secret": "secret"}}, "payload.copies"),
        ({"to": "a@b", "secret": "x" * 200}, "the payload"),
        ({"to": "a@b", "secret": float("nan")}, "the payload"),
    ],
)
def test_a_refusal_says_where_and_shows_no_value(payload: Any, where: str) -> None:
    with pytest.raises(InvalidSelectionError) as refusal:
        check_patched_payload("mail", payload, SPEC, 100)

    assert str(refusal.value) == f"its handler refuses {where}"
