"""What a reader may rely on: a class has a name of its own, a file one idea, a folder few files."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

HOUSE = Path(__file__).parent.parent / "tasks_app"
FILES = sorted(HOUSE.rglob("*.py"))
SHARED = {"Fixed", "Notice"}
"""Public twice: a retry policy, and a planner of ranges."""
EXAMPLE = re.compile(r'\n\n *>>> .*?\n(?=\n| *""")', re.DOTALL)
CLASS = re.compile(r"^class ([^_]\w*)", re.MULTILINE)
LONG = {"runtime/handlers/context.py", "runtime/handler_db/ends.py"}
"""What a handler is given, and how runs end, each in one piece."""
MOST_LINES = 350


def test_a_name_is_one_class() -> None:
    names = Counter(name for file in FILES for name in CLASS.findall(file.read_text()))

    assert {name for name, number in names.items() if number > 1} == SHARED


def length(file: Path) -> int:
    """How many lines it has, without the examples of its docstrings."""
    return len(EXAMPLE.sub("\n", file.read_text()).splitlines())


def test_no_file_is_longer_than_one_sitting() -> None:
    long = {str(file.relative_to(HOUSE)) for file in FILES if length(file) > MOST_LINES}

    assert long == LONG


def test_a_folder_shows_its_files_at_one_look() -> None:
    folders = Counter(file.parent.relative_to(HOUSE) for file in FILES if file.stem != "__init__")

    assert [f"{folder}: {number}" for folder, number in folders.items() if number > 25] == []
