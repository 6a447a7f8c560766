"""Run snippets one by one, here or in a system's own environment, and say what each raised.

A decorator gets a function, a ``with`` a body; ``await`` may stand anywhere. What a snippet that
begins with ``raise`` raises is no error, unless the exception cannot be made.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import sys
from types import CodeType
from typing import Any

MISTAKES = (NameError, AttributeError, TypeError, ImportError)


def whole(snippet: str, decorated: str) -> str:
    if snippet.startswith("@"):
        return snippet.replace(" @", "\n@") + "\n" + decorated
    return f"{snippet} pass" if snippet.endswith(":") else snippet


async def run(source: str, names: dict[str, Any]) -> None:
    code: CodeType = compile(source, "snippet", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running = eval(code, names)
    if inspect.isawaitable(running):
        await running


async def try_all(prelude: str, snippets: list[str], names: dict[str, Any]) -> dict[str, str]:
    await run(prelude, names)
    errors = {}
    for snippet in snippets:
        try:
            await run(whole(snippet, names.get("DECORATED", "")), dict(names))
        except Exception as error:
            if not snippet.startswith("raise ") or isinstance(error, MISTAKES):
                errors[snippet] = f"{type(error).__name__}: {error}"
    return errors


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    found = asyncio.run(try_all(asked["prelude"], asked["snippets"], {}))
    sys.stdout.write(f"{json.dumps(found)}\n")
