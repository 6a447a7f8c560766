"""Code on pages and in docstrings."""

from __future__ import annotations

import ast
import configparser
import dataclasses
import doctest
import inspect
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, is_typeddict

import pytest
import yaml
from sqlalchemy import Engine

import tasks_app
from tasks_app import BatchJob, Fail, Settings, Task, TasksError, create_task, get_task, testing
from tasks_app.domain.queues import QueueOptions
from tasks_app.domain.schedules.timing import When
from tasks_app.domain.tasks.options import TaskOptions
from tasks_app.runtime.handlers.options import HandlerOptions
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.schedules.declared import ScheduleOptions
from tasks_app.testing.creation import Where
from tasks_app.testing.handler_call import ContextOptions
from tests.cases import in_one_test
from tests.docs.reading import DOCUMENTS, PROJECT, PUBLIC, blocks, section, text_of, world

pages = in_one_test("document", DOCUMENTS)
READ: dict[str, Callable[[str], Any]] = {
    "yaml": lambda block: list(yaml.safe_load_all(block)),
    "toml": tomllib.loads,
    "ini": lambda block: configparser.RawConfigParser(strict=False).read_string(f"[top]\n{block}"),
    "json": json.loads,
}
OUTSIDE = re.compile(r"TASKS_APP_(TEST_\w+|COMPOSE_\w+)$")
"""Of the suite and of docker-compose.yml; no settings."""


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Modules of ours with the names that are taken from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if _ours(alias.name))
        elif isinstance(node, ast.ImportFrom) and _ours(node.module or ""):
            yield from ((node.module or "", alias.name) for alias in node.names)


def parsed(block: str) -> ast.AST:
    """Of a part of a file, of a function's body, or of a signature."""
    signature = re.sub(r"^(?:await |@|\w+\.)?(\w+)(?=\()", r"def \1", block.strip())
    for source in (block, f"if True:\n{block}", f"{signature}: ..."):
        with suppress(SyntaxError):
            return ast.parse(source)
    return ast.parse(block)


def _ours(module: str) -> bool:
    return module.partition(".")[0] == "tasks_app"


def _there(module: str, name: str) -> bool:
    if find_spec(module) is None:
        return False
    if not name or hasattr(import_module(module), name):
        return True
    return find_spec(f"{module}.{name}") is not None


@pages
def test_python_parses_and_imports_what_is_there(document: Path) -> None:
    trees = [parsed(block) for block in blocks(document.read_text(), "python")]
    lost = [each for tree in trees for each in imported(tree) if not _there(*each)]
    assert lost == []


@pages
@in_one_test("language", READ)
def test_files_of_settings_parse(document: Path, language: str) -> None:
    for block in blocks(document.read_text(), language):
        READ[language](block)


@pages
def test_every_variable_is_a_setting(document: Path) -> None:
    named = set(re.findall(r"\bTASKS_APP_[A-Z_]*[A-Z]\b(?!\*|_|…)", document.read_text()))
    known = {
        str(field.validation_alias or f"TASKS_APP_{name.upper()}")
        for name, field in Settings.model_fields.items()
    }
    assert {name for name in named - known if not OUTSIDE.match(name)} == set()


def test_a_block_that_names_what_is_gone_would_be_seen() -> None:
    code = "from tasks_app import gone, handler\nimport tasks_app.nowhere\nfrom os import path"
    found = list(imported(ast.parse(code)))
    lost = [each for each in found if not _there(*each)]
    assert lost == [("tasks_app", "gone"), ("tasks_app.nowhere", "")]


def test_the_policies_of_retries_are_what_its_comments_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HANDLERS, "specs", {})
    for block in blocks(text_of("docs/retries.md"), "python"):
        exec(compile(block, "docs/retries.md", "exec"), {})
    declared = HANDLERS.specs
    attempts = {name: spec.max_attempts for name, spec in declared.items()}

    assert attempts == {
        "report.build": 3, "order.export": 8, "cache.warm": 5,
        "stock.push": 5, "feed.pull": 12, "price.fetch": 3,
    }  # fmt: skip
    assert declared["order.export"].retry.wait(7, Random()) == timedelta(days=2)
    pushed = declared["stock.push"].retry.wait(3, Random()).total_seconds()
    assert 60 < pushed < 66


@pytest.mark.parametrize(
    ("fails", "result"),
    [
        (False, "2026-11: invoice-1.pdf, invoice-2.pdf, invoice-3.pdf"),
        (True, "2026-11: 1 failed, 2 succeeded"),
    ],
)
def test_the_program_on_groups_ends_with_its_callback(
    engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch, *, fails: bool, result: str
) -> None:
    monkeypatch.setattr(HANDLERS, "specs", {})
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", database_url)
    program = blocks(text_of("docs/groups.md"), "python")[0]
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program, "docs/groups.md", "exec"), names)
    if fails:
        testing.fail_next("invoice.render", Fail("no paper"))
    testing.drain(Settings(database_url=database_url))
    with engine.connect() as connection:
        callback = get_task(connection, names["group"].callback_id)
    assert callback is not None
    assert callback.result == result


@pytest.mark.parametrize("fails", [False, True])
def test_the_program_on_flows_ends_as_its_page_says(
    engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    monkeypatch.setattr(HANDLERS, "specs", {})
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", database_url)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(blocks(text_of("docs/flows.md"), "python")[0], "docs/flows.md", "exec"), names)
    if fails:
        testing.fail_next("order.pay", Fail("no bank"))
    settings, flow_id = Settings(database_url=database_url), names["created"].id
    testing.drain(settings)
    if fails:
        with engine.begin() as connection:
            stalled = tasks_app.get_flow(connection, flow_id)
            assert stalled is not None
            assert stalled.state == "stalled"
            tasks_app.requeue_task(connection, names["created"].task_ids["pay"])
        testing.drain(settings)
    with engine.connect() as connection:
        flow = tasks_app.get_flow(connection, flow_id)
    assert flow is not None
    assert flow.state == "succeeded"
    assert {step.name: step.result for step in flow.steps} == {
        "pay": {"receipt": "R-7"},
        "reserve": "shelf 4",
        "ship": {"from": "shelf 4", "receipt": "R-7"},
        "mail": "Order 7 comes from shelf 4.",
        "sorry": "Order 7 has to wait: the payment was a failure." if fails else None,
    }


CALLABLE = {
    name: getattr(room, name)
    for room in (testing, tasks_app)
    for name in room.__all__
    if callable(getattr(room, name))
}
OPTIONS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(ContextOptions, HandlerOptions, QueueOptions, ScheduleOptions, TaskOptions, When, Where),
    )
}
ANY = {"NewTask": TaskOptions, "foresee_bulk": None, "start_bulk": None}
"""Their options are read by the function: those of a task, and what narrows down a bulk."""


def options(name: str) -> set[str] | None:
    """By keyword; None where any is taken."""
    known: set[str] = set()
    for parameter in inspect.signature(CALLABLE[name]).parameters.values():
        known.add(parameter.name)
        if parameter.kind is parameter.VAR_KEYWORD:
            kind = ANY[name] if name in ANY else _options(str(parameter.annotation))
            if kind is None:
                return None
            known |= set(kind.__annotations__)
    return known


def _options(annotation: str) -> Any:
    found = re.fullmatch(r"Unpack\[(\w+)\]", annotation)
    assert found, annotation
    return OPTIONS[found[1]]


def misspelt(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            known = options(node.func.id) if node.func.id in CALLABLE else None
            given = [word.arg for word in node.keywords if word.arg]
            yield from (
                f"{node.func.id}({each}=…)" for each in given if known and each not in known
            )


@pages
def test_calls_give_options_that_are_there(document: Path) -> None:
    trees = [parsed(block) for block in blocks(document.read_text(), "python")]
    assert [each for tree in trees for each in misspelt(tree)] == []


def test_a_misspelt_option_would_be_seen() -> None:
    code = 'create_task(session, "a", delay="1s", dealy="1s")\n@handler(retries=3)\ndef f(): ...'
    assert list(misspelt(ast.parse(code))) == ["create_task(dealy=…)", "handler(retries=…)"]


WITHOUT = {
    "AsyncTaskContext": "the TaskContext of an async handler",
    "ChunkContext": "a step's function is given one: BatchJob shows it",
    "Handler": "@handler makes it",
    "Settings": "a record of settings, made from the environment",
    "TaskId": "a number that create_task returns",
}


def is_a_twin(name: str) -> bool:
    """Whether it does what another does, and is awaited."""
    return name[0] == "a" and name[1:] in PUBLIC


def is_a_record(each: Any) -> bool:
    """Whether its fields are all that there is to it. Errors and outcomes are raised."""
    return inspect.isclass(each) and (
        dataclasses.is_dataclass(each)
        or is_typeddict(each)
        or issubclass(each, Enum | tuple | BaseException)
    )


CALLED = [name for name, each in PUBLIC.items() if not is_a_twin(name) and not is_a_record(each)]
PARSE = doctest.DocTestParser().get_doctest
EXAMPLES = {
    name: PARSE(inspect.getdoc(PUBLIC[name]) or "", {}, name, None, None)
    for name in CALLED
    if name not in WITHOUT
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_true(name: str, engine: Engine) -> None:
    example, said = EXAMPLES[name], []
    assert 1 <= example.docstring.count(">>>") + example.docstring.count("\n...") <= 8
    with world(engine) as names:
        example.globs = names
        doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(
            example, out=said.append
        )
    assert "".join(said) == ""


def test_what_has_none_is_listed_with_a_reason() -> None:
    assert WITHOUT.keys() <= set(CALLED)
    assert all(WITHOUT.values())


def test_who_is_called_and_who_is_not() -> None:
    """Or a list that is empty by mistake would pass."""
    assert {"create_task", "handler", "TaskBuffer", "drain", "TasksTestMixin"} <= set(CALLED)
    assert not {"acreate_task", "Task", "TasksError", "NewTask", "Retry"} & set(CALLED)
    assert is_a_record(Task)
    assert is_a_record(TasksError)
    assert not is_a_record(BatchJob)
    assert not is_a_record(create_task)


GUIDES = {
    "fastapi": "fastapi_app/*.py",
    "flask": "flask_app/*.py",
    "litestar": "litestar_app/*.py",
    "scripts": "script.py",
}
BLOCK = re.compile(r"```python\n# (?:shop/)?\w+\.py\n(.*?)```", re.DOTALL)
"""Of a file: its name is the first line."""


@pytest.mark.parametrize("guide", GUIDES)
def test_each_line_of_a_guides_files_is_in_its_example(guide: str) -> None:
    page = (PROJECT / "docs/frameworks" / f"{guide}.md").read_text()
    sources = [path.read_text() for path in (PROJECT / "examples").glob(GUIDES[guide])]
    known = {line for source in sources for line in source.splitlines()}
    package = f"from {GUIDES[guide].partition('/')[0]}."
    shown = [
        line.replace("from shop.", package)
        for block in BLOCK.findall(page)
        for line in block.splitlines()
    ]
    assert len(shown) > 15
    assert [line for line in shown if line not in known] == []


def test_the_services_are_those_of_an_application() -> None:
    page = (PROJECT / "docs/frameworks/README.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    services = yaml.safe_load(block)["services"]
    assert list(services) == ["migrate", "web", "worker", "beat"]
    assert services["worker"]["command"].startswith("celery -A tasks_app worker")
    for each in services.values():
        assert {"TASKS_APP_DATABASE_URL", "TASKS_APP_IMPORTS"} <= each["environment"].keys()


def test_every_guide_is_in_the_contents() -> None:
    contents = (PROJECT / "docs/frameworks/README.md").read_text()
    pages = {path.stem for path in (PROJECT / "docs/frameworks").glob("*.md")} - {"README"}
    assert pages == {*GUIDES, "django"}
    assert all(f"({page}.md)" in contents for page in pages)


PAGE = text_of("docs/reference/deprecation.md")


def warned(files: list[Path]) -> list[str]:
    """Files whose code tells somebody that a name goes."""
    mark = re.compile(r"DeprecationWarning|typing_extensions import .*deprecated|deprecated=True")
    return [str(file.relative_to(PROJECT)) for file in files if mark.search(file.read_text())]


def test_what_warns_is_on_the_page() -> None:
    files = warned(sorted((PROJECT / "tasks_app").rglob("*.py")))
    listed = section(PAGE, "Deprecated now").strip()
    assert files == [] if listed == "Nothing." else files != []


def test_the_changelog_has_a_section_for_each_thing_that_is_listed() -> None:
    newest = text_of("CHANGELOG.md").partition("\n## [")[0]
    nothing = section(PAGE, "Deprecated now").strip() == "Nothing."
    assert ("\n### Deprecated" in newest) is not nothing
