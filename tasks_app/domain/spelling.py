"""What was perhaps meant by a word that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable


def meant(word: str, known: Iterable[str]) -> str:
    """Return a clause such as ``; perhaps delay is meant``; empty: none of them is like it."""
    import difflib  # noqa: PLC0415  only for what is wrong

    near = difflib.get_close_matches(word, sorted(known), 1)
    return f"; perhaps {near[0]} is meant" if near else ""
