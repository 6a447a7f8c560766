"""What was perhaps meant by a word that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like it; None: none is."""
    import difflib  # noqa: PLC0415  only for what is wrong

    return next(iter(difflib.get_close_matches(word, sorted(known), 1)), None)


def meant(word: str, known: Iterable[str]) -> str:
    """Return a clause such as ``; perhaps delay is meant``; empty: none of them is like it."""
    near = nearest(word, known)
    return f"; perhaps {near} is meant" if near else ""
