"""A class of the product has a name of its own."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

PRODUCT = sorted((Path(__file__).parent.parent / "tasks_app").rglob("*.py"))
SHARED = {"Fixed", "Notice"}
"""Public twice: a retry policy, and a planner of ranges."""
CLASS = re.compile(r"^class ([^_]\w*)", re.MULTILINE)


def test_a_name_is_one_class() -> None:
    names = Counter(name for file in PRODUCT for name in CLASS.findall(file.read_text()))

    assert {name for name, number in names.items() if number > 1} == SHARED
