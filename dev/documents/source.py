"""What Python throws away of its source: signatures as they are written, texts under fields."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef
_SECTION = re.compile(r"^(Args|Raises|Returns|Yields):$", re.MULTILINE)
_WIDTH = 92


@functools.cache
def definitions(module: str) -> dict[str, ast.AST]:
    """The functions, classes and aliases of a module by name; of overloads the last one."""
    tree = ast.parse(Path(str(import_module(module).__file__)).read_text())
    return dict(_named(tree.body))


def _named(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield name, node
            case _:
                pass


def class_of(module: str, name: str) -> ast.ClassDef:
    """The class of this name."""
    node = definitions(module)[name]
    assert isinstance(node, ast.ClassDef)  # noqa: S101
    return node


def methods(node: ast.ClassDef) -> dict[str, Definition]:
    """Public methods and properties; of a property its getter."""
    found: dict[str, Definition] = {}
    for child in node.body:
        if isinstance(child, Definition) and not child.name.startswith("_"):
            found.setdefault(child.name, child)
    return found


def is_property(node: Definition) -> bool:
    """Whether it is read without a call."""
    return any("property" in ast.unparse(each) for each in node.decorator_list)


def fields(node: ast.AST) -> dict[str, tuple[str, str, str]]:
    """Public fields of a body: annotation, default and the text under each."""
    body = getattr(node, "body", [])
    found = {}
    for field, after in itertools.pairwise([*body, ast.Pass()]):
        match field:
            case ast.AnnAssign(target=target, annotation=kind, value=value):
                name, annotation = ast.unparse(target), ast.unparse(kind)
            case ast.Assign(targets=[target], value=value):
                name, annotation = ast.unparse(target), ""
            case _:
                continue
        name = name.removeprefix("self.")
        if not name.startswith("_"):
            default = "" if value is None else ast.unparse(value)
            found[name] = annotation, default, plain(_text(after))
    return found


def _text(node: ast.stmt) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return textwrap.dedent(text)
        case _:
            return ""


def signature(node: Definition, name: str = "") -> str:
    """The definition as it is called, in one line or with one argument a line; no ``self``."""
    arguments = node.args
    if arguments.args and arguments.args[0].arg in {"self", "cls"}:
        arguments = ast.arguments(**{**vars(arguments), "args": arguments.args[1:]})
    parts = _split(ast.unparse(arguments))
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    before = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    line = f"{before}{name or node.name}({', '.join(parts)}){returns}"
    if len(line) <= _WIDTH:
        return line
    lines = "".join(f"    {part},\n" for part in parts)
    return f"{before}{name or node.name}(\n{lines}){returns}"


def _split(arguments: str) -> list[str]:
    """Split at the commas that stand in no bracket; set annotated defaults apart."""
    parts, depth = [""], 0
    for letter in arguments:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [re.sub(r"^(\w+: [^=]+)=", r"\1 = ", part.strip()) for part in parts if part.strip()]


def docstring(node: ast.AST) -> str:
    """The docstring as Markdown: what it raises and takes as lists."""
    text = ast.get_docstring(node) if isinstance(node, Definition | ast.ClassDef) else ""
    head, *sections = _SECTION.split(text or "")
    paragraphs = [_paragraph(paragraph) for paragraph in head.strip().split("\n\n")]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        entries = re.split(r"\n(?=\S)", textwrap.dedent(body.strip("\n")).strip())
        if title in {"Args", "Raises"}:
            pairs = [plain(entry).partition(": ") for entry in entries]
            lines = [f"- `{word}`: {said}" for word, _, said in pairs]
        else:
            lines = [plain(" ".join(entries))]
        paragraphs.append("\n".join([f"{title}:", "", *lines]))
    return "\n\n".join(paragraphs)


def _paragraph(text: str) -> str:
    """One that is indented, or as typed at the prompt, is an example."""
    if text.startswith(">>> "):
        return f"```pycon\n{text}\n```"
    if text.startswith("    "):
        return f"```python\n{textwrap.dedent(text)}\n```"
    return plain(text)


def has_example(node: ast.AST) -> bool:
    """Whether the docstring of a function or class shows a call."""
    return "\n```pycon\n" in docstring(node)


def first_sentence(node: ast.AST) -> str:
    """The first line of the docstring."""
    return docstring(node).split("\n\n", 1)[0]


def plain(text: str) -> str:
    """One paragraph in one line; roles and double backticks of reST as Markdown has them."""
    line = " ".join(text.split())
    line = re.sub(r":meth:`~?\.?([^`]+)`", r"`\1()`", line)
    line = re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", line)
    return line.replace("``", "`")


def cell(text: str) -> str:
    """A text as a cell of a table."""
    return text.replace("|", "\\|")


def generated(title: str, origin: str, about: str) -> list[str]:
    """The head of a page."""
    note = f"Written by `make docs` from `{origin}`; edit that, not this."
    return [f"# {title}", "", note, "", about.strip(), ""]
