"""docs/reference/test-kit.md: the test kit."""

from __future__ import annotations

import ast

from dev.documents.api import definition, table
from dev.documents.source import (
    Definition,
    cell,
    class_of,
    definitions,
    docstring,
    fields,
    first_sentence,
    generated,
    has_example,
    is_property,
    methods,
)
from tasks_app.testing import _ROOMS

KIT = "tasks_app.testing"
RECORDS = ("Where", "ContextOptions", "TaskRun")
"""Classes whose fields are all that there is to them."""


def page() -> str:
    """Return the page about ``from tasks_app.testing import …``."""
    about = (
        "What `from tasks_app.testing import …` offers. How to use it: [recipes](../testing.md). "
        "Examples begin [as those of the exported names](exports.md)."
    )
    home = {name: f"{KIT}.{room}" for room, names in _ROOMS.items() for name in names.split()}
    lines = [
        *generated("Test kit", "tasks_app/testing", about),
        "| name | what it is |",
        "|---|---|",
    ]
    found = {name: definitions(home[name])[name] for name in home}
    lines += [f"| `{name}` | {_what(name, node)} |" for name, node in found.items()]
    lines.append("")
    for name, node in found.items():
        if isinstance(node, Definition):
            lines += definition(node, name, level=2)
        elif has_example(node):
            lines += [f"## {name}", "", docstring(node), ""]
    for name in RECORDS:
        lines += [f"## {name}", "", docstring(found[name]), ""]
        lines += table(fields(class_of(home[name], name)), "field")
    return "\n".join([*lines, *_drained(home["Drained"])]).rstrip() + "\n"


def _what(name: str, node: ast.AST) -> str:
    """An async twin that is made of its plain verb has no text of its own."""
    return cell(first_sentence(node)) or f"Do as `{name[1:]}`, in an async transaction."


def _drained(module: str) -> list[str]:
    node = class_of(module, "Drained")
    lines = ["## Drained", "", docstring(node), "", "| member | meaning |", "|---|---|"]
    members = {n: d for n, d in methods(node).items() if not n.startswith("_")}
    runs = fields(node)["runs"][2]
    lines.append(f"| `runs` | {cell(runs)} |")
    for name, each in members.items():
        call = name if is_property(each) or name == "tasks" else f"{name}()"
        lines.append(f"| `{call}` | {cell(first_sentence(each))} |")
    return lines
