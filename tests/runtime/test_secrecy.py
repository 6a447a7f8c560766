"""What is logged of an error never holds a payload."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from tasks_app.domain.tasks.error_text import first_line
from tests.runtime.bench import Bench

INSERT = text("INSERT INTO task_pending (name, priority, payload) VALUES ('t', 11, :payload)")


def test_a_refused_row_is_named_by_its_constraint_alone(bench: Bench) -> None:
    database = bench.child(start=False).database

    with pytest.raises(IntegrityError) as refusal, database.begin() as connection:
        connection.execute(INSERT, {"payload": '{"card": "canary"}'})

    assert "numbers_are_sane" in first_line(refusal.value)
    assert "canary" in str(refusal.value.orig)
    assert "canary" not in first_line(refusal.value)


def test_errors_of_our_own_statements_hide_their_parameters(bench: Bench) -> None:
    database = bench.child(start=False).database

    with pytest.raises(IntegrityError) as refusal, database.begin() as connection:
        connection.execute(INSERT, {"payload": '{"card": "canary"}'})

    assert "canary" not in str(refusal.value).split("[SQL:")[1]
