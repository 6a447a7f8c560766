"""A table of cases in one test, where a test for each would cost more than what it looks at."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def in_one_test(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., Any]], Any]:
    """Like ``pytest.mark.parametrize``, in one test: the error of the first that fails names it.

    Fixtures are made once, so the function must leave them as they were.
    """
    parameters = [name.strip() for name in names.split(",")]
    table = [(case,) if len(parameters) == 1 else tuple(case) for case in cases]
    assert table, "a table without cases"

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def test(**fixtures: Any) -> None:
            for case in table:
                given = dict(zip(parameters, case, strict=True))
                try:
                    function(**fixtures, **given)
                except BaseException as error:
                    error.add_note(f"case: {given}")
                    raise

        signature = inspect.signature(function)
        kept = [each for name, each in signature.parameters.items() if name not in parameters]
        test.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return test

    return decorate
