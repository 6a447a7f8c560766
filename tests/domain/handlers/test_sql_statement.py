"""Statements of tasks in SQL: what is a parameter, and what is refused when it is declared."""

from __future__ import annotations

import pytest

from tasks_app.domain.handlers.spec import parameter_texts, parse_statement


@pytest.mark.parametrize(
    ("statement", "text", "names"),
    [
        ("CALL refresh_report(:day)", "CALL refresh_report(%(day)s)", ("day",)),
        ("SELECT :a::date, :b, :a", "SELECT %(a)s::date, %(b)s, %(a)s", ("a", "b")),
        ("SELECT :größe", "SELECT %(größe)s", ("größe",)),
        ("SELECT f(x := :x, y := 1)", "SELECT f(x := %(x)s, y := 1)", ("x",)),
        ("SELECT 1::int, '10:30', ':no', E'it\\':s', \":no\"", None, ()),
        ("SELECT $$:no$$, $q$ $$ :no $q$", None, ()),
        ("SELECT 1 -- :no 'open\n + :yes", "SELECT 1 -- :no 'open\n + %(yes)s", ("yes",)),
        ("/* ; :no */ SELECT 'it''s :no'", None, ()),
        ("SELECT 5 % 2, 'a%s'", "SELECT 5 %% 2, 'a%%s'", ()),
        ("  select 1 ;  -- done\n ; ", "select 1   -- done", ()),
        ("WITH x AS (SELECT 1) DELETE FROM a$b USING x", None, ()),
        ("SELECT a['x':'y'], a[ 1 : 2 ]", None, ()),
    ],
)
def test_a_colon_and_a_name_is_a_parameter(
    statement: str, text: str | None, names: tuple[str, ...]
) -> None:
    parsed = parse_statement(statement)

    assert (parsed.text, parsed.names) == (text or statement, names)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("", "is empty"),
        ("-- nothing", "is empty"),
        ("SELECT 1; SELECT 2", "is more than one statement"),
        ("SELECT 1; :x", "is more than one statement"),
        ("SELECT 1; (", "is more than one statement"),
        ("SELECT 1; 'x'", "is more than one statement"),
        ("SELECT $1", r"has the parameter \$1"),
        ("SELECT 'open", "has a ' that is not closed"),
        ('SELECT "open', 'has a " that is not closed'),
        ("SELECT $a$ open $b$", r"has a \$ that is not closed"),
        ("SELECT 1 /* open", r"has a /\* that is not closed"),
        ("SELECT 1 /* a /* b */ */", "has a comment in a comment"),
        ("COMMIT", "begins with COMMIT. Allowed: CALL, DELETE"),
        ("/* */ begin", "begins with BEGIN"),
        ("SET ROLE x", "begins with SET"),
        ("COPY t FROM STDIN", "begins with COPY"),
        ("TRUNCATE :table", "has parameters, which TRUNCATE cannot take"),
        (None, "is of type NoneType"),
    ],
)
def test_what_no_task_could_carry_out_is_refused(statement: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_statement(statement)


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (None, None),
        ("x'; --", "x'; --"),
        (3, "3"),
        (1.5, "1.5"),
        (True, "true"),
        ([1, "x"], '[1, "x"]'),
        ({"h": None}, '{"h": null}'),
    ],
)
def test_values_are_texts_as_the_database_takes_them_out_of_a_payload(
    value: object, sent: str | None
) -> None:
    assert parameter_texts({"a": value}) == {"a": sent}
