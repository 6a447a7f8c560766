"""An array of texts reads back as what it was made of."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.tasks.records import text_array

TEXTS = (
    [],
    [""],
    ["", "a"],
    ['say "so"', "a\\b", "\\", '"', 'a\\"b', "a,b", "{c}", "NULL", " d ", "line\nend", "ü"],
)


@pytest.mark.parametrize("texts", TEXTS)
def test_any_characters_survive(connection: Connection, texts: list[str]) -> None:
    asked = {"written": text_array(texts)}
    read = connection.execute(text("SELECT CAST(:written AS text[])"), asked).scalar_one()
    assert read == texts


def test_texts_of_objects_are_meant() -> None:
    assert text_array([1, "a"]) == '{"1","a"}'
