"""What pages claim, and what proves it; traces and figures are those of today."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import tasks_app.testing
from dev.benchmarks.figures import read
from dev.benchmarks.report import figures_page, newest
from dev.torture.mutants.all import ALL as OF_THE_PRODUCT
from dev.verification import configurations, mutants
from dev.verification.report import print_trace, visit
from tasks_app import Settings, create_task, list_schedules
from tasks_app.broker import results
from tasks_app.celery_tasks import run_from_pool
from tasks_app.domain.tasks.retry_policy import MOST_ATTEMPTS
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.testing import drain, plugin
from tasks_app.testing.creation import Where
from tests.broker.side_by_side import CANVASES, CASES
from tests.docs.reading import PROJECT, blocks, section, text_of

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


PAGE_OF_FROM_CELERY = text_of("docs/from/celery.md")
TASKS, BEFORE, AFTER, OUTBOX, CHAIN, POLL, PERIODIC, HANDLER = blocks(PAGE_OF_FROM_CELERY, "python")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "guide_order"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """A shop's session."""
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield session
    Base.metadata.drop_all(engine)


def run(block: str, names: dict[str, Any]) -> None:
    """Run code whose app is nobody else's: other tests' tasks must not become its own."""
    aside = block.replace("Celery(", "Celery(set_as_current=False, main=")
    exec(compile(aside, "guide", "exec"), names)


@pytest.fixture(scope="module")
def shop() -> Iterator[dict[str, Any]]:
    """The names of the guide's code, of all blocks but the one before the change."""
    names: dict[str, Any] = {"__name__": "shop"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HANDLERS, "specs", {})
        for block in (TASKS, AFTER, OUTBOX, CHAIN, POLL, PERIODIC, HANDLER):
            run(block, names)
        run_from_pool(names["app"])
        yield names


def rows(engine: Engine) -> list[tuple[str, str, Any]]:
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT name, state, result FROM task_all ORDER BY id")
        return [tuple(row) for row in found]


def test_both_ways_of_buying_write_rows_of_the_transaction(
    engine: Engine, database_url: str, session: Session, shop: dict[str, Any]
) -> None:
    shop["buy"](session, Order(id=1))
    shop["buy_and_tell"](session, Order(id=2))
    drain(Settings(database_url=database_url))
    assert rows(engine) == [
        ("shop.send_receipt", "SUCCEEDED", 1),
        ("shop.tell_warehouse", "SUCCEEDED", 2),
        ("shop.tell_warehouse", "PENDING", None),
    ]


def test_a_chain_becomes_a_flow(
    engine: Engine, database_url: str, session: Session, shop: dict[str, Any]
) -> None:
    shop["take_order"](session, Order(id=7))
    create_task(session, shop["book"], {"order_id": 7})
    session.commit()
    drain(Settings(database_url=database_url))
    assert sorted(rows(engine)) == [
        ("shop.book", "SUCCEEDED", None),
        ("shop.pack", "SUCCEEDED", "order 7, receipt 7"),
        ("shop.send_receipt", "SUCCEEDED", 7),
    ]


def test_a_front_end_polls_the_pool(
    engine: Engine,
    database_url: str,
    session: Session,
    shop: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", database_url)
    results._engine.cache_clear()
    task_id = create_task(session, shop["send_receipt"], args=[5])
    session.commit()
    before = shop["status"](task_id)
    drain(Settings(database_url=database_url))
    after = shop["status"](task_id)
    results._engine(os.getpid()).dispose()
    results._engine.cache_clear()
    assert before == {"state": "PENDING", "result": None}
    assert after == {"state": "SUCCESS", "result": 5}


# As the migrations of django-celery-beat 2.9.0 make them, without what is not read.
PERIODIC_TABLES = """
    CREATE TABLE django_celery_beat_crontabschedule (id serial PRIMARY KEY, minute varchar(240),
        hour varchar(96), day_of_week varchar(64), day_of_month varchar(124),
        month_of_year varchar(64), timezone varchar(63));
    CREATE TABLE django_celery_beat_intervalschedule (id serial PRIMARY KEY, every integer,
        period varchar(24));
    CREATE TABLE django_celery_beat_clockedschedule (id serial PRIMARY KEY,
        clocked_time timestamptz);
    CREATE TABLE django_celery_beat_periodictasks (ident smallint PRIMARY KEY,
        last_update timestamptz NOT NULL);
    CREATE TABLE django_celery_beat_periodictask (id serial PRIMARY KEY, name varchar(200),
        task varchar(200), args text DEFAULT '[]', kwargs text DEFAULT '{}', queue varchar(200),
        expires timestamptz, enabled boolean DEFAULT true, crontab_id integer,
        interval_id integer, solar_id integer, one_off boolean DEFAULT false,
        start_time timestamptz, clocked_id integer);
    INSERT INTO django_celery_beat_periodictasks VALUES (1, 'epoch');
    INSERT INTO django_celery_beat_crontabschedule
    VALUES (1, '30', '3', 'mon-fri', '*', '*', 'Europe/Berlin');
    INSERT INTO django_celery_beat_intervalschedule VALUES (1, 10, 'minutes');
    INSERT INTO django_celery_beat_clockedschedule
    VALUES (1, '2100-01-01 00:00Z'), (2, '2000-01-01 00:00Z');
    INSERT INTO django_celery_beat_periodictask
        (name, task, args, crontab_id, interval_id, clocked_id, solar_id, one_off, enabled)
    VALUES ('at night', 'shop.pack', '[1]', 1, NULL, NULL, NULL, false, true),
        ('often', 'shop.pack', '[2]', NULL, 1, NULL, NULL, false, true),
        ('once', 'shop.pack', '[3]', NULL, NULL, 1, NULL, true, true),
        ('past', 'shop.pack', '[4]', NULL, NULL, 2, NULL, true, true),
        ('once by a rule', 'shop.pack', '[5]', 1, NULL, NULL, NULL, true, true),
        ('sunset', 'shop.pack', '[6]', NULL, NULL, NULL, 1, false, true),
        ('off', 'shop.pack', '[7]', 1, NULL, NULL, NULL, false, false),
        ('ours', 'tasks_app.scan', '[]', NULL, 1, NULL, NULL, false, true),
        ('celerys', 'celery.backend_cleanup', '[]', 1, NULL, NULL, NULL, false, true);
"""


def test_periodic_tasks_move_and_no_beat_of_theirs_fires_them(
    session: Session, shop: dict[str, Any]
) -> None:
    session.connection().exec_driver_sql(PERIODIC_TABLES)
    shop["move_periodic_tasks"](session)
    moved = {each.name: each for each in list_schedules(session)}
    left = session.scalars(
        text("SELECT name FROM django_celery_beat_periodictask WHERE enabled ORDER BY id")
    )
    assert [*left] == ["past", "once by a rule", "sunset", "ours", "celerys"]
    assert {name: each.expression for name, each in moved.items()} == {
        "at_night": "30 3 * * mon-fri",
        "often": "10m",
        "once": "2100-01-01T00:00:00+00:00",
    }
    assert json.loads(moved["at_night"].payload) == {"args": [1], "kwargs": {}}
    told = text("SELECT last_update > 'epoch' FROM django_celery_beat_periodictasks")
    assert session.scalar(told)


def test_the_way_before_is_plain_celery() -> None:
    names: dict[str, Any] = {"__name__": "before"}
    run(BEFORE, names)
    assert "tasks_app" not in BEFORE
    assert callable(names["buy"])


def test_its_settings_exist_and_its_figures_are_true() -> None:
    for name in re.findall(r"TASKS_APP_([A-Z_]+)", PAGE_OF_FROM_CELERY):
        assert name.lower() in Settings.model_fields
    both = len(CASES) + len(CANVASES)
    assert f"{both} cases, of them {len(CANVASES)} chains" in PAGE_OF_FROM_CELERY
    assert f"{MOST_ATTEMPTS:,} attempts" in PAGE_OF_FROM_CELERY


PAGE_OF_TESTING = text_of("docs/testing.md")
EXAMPLE = "\n".join(path.read_text() for path in (PROJECT / "examples/testing").glob("*.py"))


@pytest.mark.parametrize("block", blocks(PAGE_OF_TESTING, "python"))
def test_each_block_is_code_of_the_example(block: str) -> None:
    assert block.strip() in EXAMPLE


def test_there_are_ten_recipes_each_with_code() -> None:
    recipes = section(PAGE_OF_TESTING, "Ten recipes").split("\n### ")[1:]
    assert [recipe.split(".")[0] for recipe in recipes] == [str(n) for n in range(1, 11)]
    assert all("```python" in recipe for recipe in recipes)


def test_each_test_of_the_example_but_one_is_a_recipe() -> None:
    tests = set(re.findall(r"^def (test_\w+)", EXAMPLE, re.M))
    others = {name for name in tests if name not in PAGE_OF_TESTING}
    assert others == {"test_a_payload_that_a_producer_may_not_send"}


def test_a_failing_assertion_says_what_the_page_shows(connection: Connection) -> None:
    options: Any = {"biz_key": "order:7"}
    create_task(connection, "points.grant", {"order_id": 7}, **options)
    create_task(connection, "card.charge", {"order_id": 7}, queue="payments", **options)
    create_task(connection, "review.ask", {"order_id": 7}, delay="2d", **options)
    with pytest.raises(AssertionError) as failure:
        tasks_app.testing.assert_created(connection, "card.charge", {"order_id": 8})
    (shown,) = blocks(PAGE_OF_TESTING, "text")
    said = re.sub(r"\((\d+),", "(1,", f"AssertionError: {failure.value}\n")
    assert said == re.sub(r"\((\d+),", "(1,", shown)


def test_it_names_each_fixture() -> None:
    fixtures = {name for name in vars(plugin) if name.startswith("tasks_app_")}
    assert fixtures == set(re.findall(r"^\| `(tasks_app_\w+)` \|", PAGE_OF_TESTING, re.M))


def test_it_names_each_name_of_the_kit() -> None:
    records = {"ContextOptions", "Where", "TaskRun", "Drained"}
    assert {n for n in tasks_app.testing.__all__ if n not in PAGE_OF_TESTING} <= records


def test_it_names_what_can_be_asserted() -> None:
    assert " ".join(Where.__annotations__) in PAGE_OF_TESTING


GUARANTEES = text_of("docs/guarantees.md")
REPLAY = re.compile(
    r'```\n\$ python -m dev.verification "(?P<name>[^"]+)"\n(?P<trace>.*?)```', re.S
)


def test_each_trace_is_what_the_model_prints(capsys: pytest.CaptureFixture[str]) -> None:
    traces = {found["name"]: found["trace"] for found in REPLAY.finditer(GUARANTEES)}
    assert len(traces) >= 3
    for name, trace in traces.items():
        (mutant,) = (m for m in mutants.ALL if m.name == name)
        print_trace(visit(mutant.setup))
        assert trace == capsys.readouterr().out, name


def test_figures_of_the_guarantees_are_those_of_today() -> None:
    for figure in (
        f"{len(configurations.ALL)} configurations",
        f"{len(mutants.ALL)} such mutants",
        f"takes {len(OF_THE_PRODUCT)} rules out",
    ):
        assert figure in GUARANTEES
