"""What the documents repeat of the code. `python tests/docs/generated.py` writes it anew."""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
from datetime import timedelta
from pathlib import Path

from tasks_app.domain.config import settings as settings_module
from tasks_app.domain.config.settings import PREFIX, Settings
from tasks_app.domain.durations import format_duration

PROJECT = Path(__file__).parents[2]
OPERATIONS = PROJECT / "docs" / "operations.md"
BLOCK = re.compile(r"(<!-- settings: begin .*?-->\n).*?(<!-- settings: end -->)", re.DOTALL)


def settings_table() -> str:
    """The settings as a Markdown table: name, default, reason."""
    reasons = _reasons()
    lines = ["| variable | default | reason |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        variable = str(field.validation_alias or f"{PREFIX}{name.upper()}")
        lines.append(f"| `{variable}` | {_shown(field.default)} | {reasons[name]} |")
    return "\n".join(lines) + "\n"


def with_settings(page: str) -> str:
    """The page with the table of today between its two marks."""
    return BLOCK.sub(lambda found: f"{found[1]}{settings_table()}{found[2]}", page)


def _reasons() -> dict[str, str]:
    """The text under each field, which Python itself throws away."""
    source = Path(settings_module.__file__).read_text()
    (body,) = (
        node.body
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == Settings.__name__
    )
    return {
        field.target.id: " ".join(textwrap.dedent(text.value.value).split()).replace("``", "`")
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _shown(default: object) -> str:
    match default:
        case None | "":
            return "none"
        case timedelta():
            return f"`{format_duration(default)}`"
        case _:
            return f"`{default}`"


if __name__ == "__main__":
    OPERATIONS.write_text(with_settings(OPERATIONS.read_text()))
