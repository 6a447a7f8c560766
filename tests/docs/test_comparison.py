"""The comparison: each fact about others has a dated source, each figure is the measured one."""

from __future__ import annotations

import re

import pytest

from dev.benchmarks.figures import read
from dev.benchmarks.report import figures_page, newest
from tests.docs.reading import section, text_of

PAGE = text_of("docs/comparison.md")
FIGURES = figures_page(read(newest()))
DEFINED = dict(re.findall(r"^\[([a-z]{2}-\w+)\]: (\S+ .*)$", PAGE, re.MULTILINE))
USED = set(re.findall(r"\]\[([a-z]{2}-\w+)\]", PAGE))
TABLES = ("Python, jobs in PostgreSQL", "Python, jobs in a broker", "Other languages")
WITHOUT_SOURCE = ("none found", "not verified", "no promise found", "as Celery", "no rows", "no:")
"""Cells that state nothing of their own about the other system's documents."""
PLAIN = {"Languages", "Needs", "For your tests"}
"""Where a language or a framework's name alone needs no source."""
MEASURES = {
    1: "## Drain of tasks that do nothing",
    2: "## Drain of tasks that insert one row each",
    3: "## Idle system, a task every 20 ms: from the call, and from the commit, to the handler",
    4: "## Idle system, a task every 20 ms: from the call, and from the commit, to the handler",
}
COLUMNS = {1: "tasks/s", 2: "tasks/s", 3: "p50 ms", 4: "p99 ms"}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table(text: str) -> list[list[str]]:
    """The cells of its first table, its header first."""
    lines = [cells(line) for line in text.splitlines() if line.startswith("|")]
    return [lines[0], *lines[2:]]


def test_each_source_is_an_address_with_a_date_and_is_used() -> None:
    assert set(DEFINED) == USED
    for key, definition in DEFINED.items():
        assert re.match(r'https://\S+ "read \d{4}-\d\d-\d\d: ', definition), key


def test_no_address_stands_without_its_date() -> None:
    bare = [line for line in PAGE.splitlines() if "://" in line and not line.startswith("[")]

    assert bare == []


@pytest.mark.parametrize("heading", TABLES)
def test_each_cell_about_others_has_a_source_or_says_that_it_has_none(heading: str) -> None:
    (_, *systems), *rows = table(section(PAGE, heading))
    bare = [
        f"{row}, {system}: {cell}"
        for row, *those in rows
        for system, cell in zip(systems, those, strict=True)
        if system != "tasks_app"
        and "][" not in cell
        and not any(words in cell for words in WITHOUT_SOURCE)
        and not (row in PLAIN and len(cell) < 30)
    ]

    assert bare == []


def test_all_tables_have_the_same_rows_and_each_of_ours_leads_somewhere() -> None:
    subjects = {tuple(row[0] for row in table(section(PAGE, heading))) for heading in TABLES}
    ours = [row[1] for row in table(section(PAGE, TABLES[0]))[1:]]

    assert len(subjects) == 1
    assert [cell for cell in ours if "](" not in cell] == []


def test_what_others_do_better_is_as_long_as_the_praise() -> None:
    other, this = (section(PAGE, f"When to take {which} one") for which in ("the other", "this"))

    assert len(other) >= len(this)


def test_each_figure_is_that_of_the_measurements() -> None:
    _, *rows = table(section(PAGE, "Measured speed"))
    shown = 0
    for system, *figures in rows:
        for place, figure in enumerate(figures, 1):
            if figure:
                measured = table(FIGURES.split(MEASURES[place], 1)[1].split("\n## ")[0])
                column = measured[0].index(COLUMNS[place])
                [row] = [row for row in measured if row[0] == system.strip("`")]
                assert row[column].split(" ")[0] == figure, (system, COLUMNS[place])
                shown += 1

    assert shown > 20


def test_the_versions_that_it_names_are_those_that_were_tried() -> None:
    pins = {
        "Procrastinate": "dev/benchmarks/peers/procrastinate",
        "PGQueuer": "dev/benchmarks/peers/pgqueuer",
        "Dramatiq": "dev/benchmarks/peers/dramatiq",
        "RQ": "tests/peers/rq",
        "django-celery-outbox": "tests/peers/django_celery_outbox",
    }
    versions = {row[0]: row[2] for row in table(section(PAGE, "Sources"))[1:]}
    for system, folder in pins.items():
        pinned = text_of(f"{folder}/requirements.txt")
        [version] = re.findall(rf"^{system.lower()}(?:\[\w+\])?==(\S+)", pinned, re.MULTILINE)
        assert versions[system].startswith(f"{version},"), system
