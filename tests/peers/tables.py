"""The tables "what you write, what it becomes" of the guides."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.docs.reading import section, text_of

HEADING = "What you write, what it becomes"
PYTHON = re.compile(r"^(?:@|await |raise |with )|\w\(|^(?:ctx|app|job)\.\w")


@dataclass(frozen=True, slots=True)
class Row:
    """What a subject is there and here, in Markdown."""

    subject: str
    theirs: str
    ours: str


def table_of(page: str) -> list[Row]:
    """The rows of ``docs/from/<page>.md``."""
    lines = section(text_of(f"docs/from/{page}.md"), HEADING).splitlines()
    cells = [[c.strip() for c in line.strip("|").split(" | ")] for line in lines if line[:1] == "|"]
    return [Row(*each) for each in cells[2:]]


def code_of(cells: list[str]) -> list[str]:
    """Each piece of Python in them."""
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell) if _is_python(code)]


def commands_of(cells: list[str], program: str) -> list[tuple[str, set[str]]]:
    """Each of the program's subcommands in them, with the options given."""
    found = []
    for cell in cells:
        for code in re.findall(r"`([^`]+)`", cell):
            if code.startswith(f"{program} "):
                _, _, rest = code.partition(f"{program} ")
                words = rest.split()
                name = next(word for word in words if not word.startswith("-"))
                found.append((name, set(re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", rest))))
    return found


def _is_python(code: str) -> bool:
    return PYTHON.search(code) is not None and not re.match(
        r"(?:tasks-app|rq|pgq|procrastinate) ", code
    )
