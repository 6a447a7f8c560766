"""Another version of a package, in which something that is not promised has another name."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

PROJECT = Path(__file__).parents[1]


def rename(name: str, *owners: Any, patch: pytest.MonkeyPatch | None = None) -> None:
    """Give it another name in these classes, and in their functions that use it."""
    patch = patch or pytest.MonkeyPatch()
    new = f"{name}_anew"
    for owner in owners:
        for function in _functions(owner):
            patch.setattr(function, "__code__", _using(function.__code__, name, new))
        if name in vars(owner):
            value = vars(owner)[name]
            patch.delattr(owner, name)
            patch.setattr(owner, new, value, raising=False)


def in_all_processes(folder: Path, *lines: str) -> dict[str, str]:
    """Return the environment of processes that carry out these lines before anything else."""
    text = "\n".join(("from tests.renaming import rename", *map(textwrap.dedent, lines), ""))
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": f"{folder}:{PROJECT}:{PROJECT / 'tests' / 'broker' / 'house'}"}


def _functions(owner: Any) -> Iterator[FunctionType]:
    for value in list(vars(owner).values()):
        function = getattr(value, "__func__", value)
        if isinstance(function, FunctionType):
            yield function


def _using(code: CodeType, name: str, new: str) -> CodeType:
    names = tuple(new if each == name else each for each in code.co_names)
    inside = tuple(
        _using(each, name, new) if isinstance(each, CodeType) else each for each in code.co_consts
    )
    return code.replace(co_names=names, co_consts=inside)
