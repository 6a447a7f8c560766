"""What no person is shown: masked paths of payloads and results, and erased values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.tasks.error_text import printable

MASK = "***"
SHORTEST_SECRET = 3  # shorter values are parts of ordinary words
_RULE = re.compile(r"(?:[^\s,:]+:)*[^\s,:.[]+(?:\.[^\s,:.[]+)*")
# pydantic leaves out the middle of a long value, so a search for the value does not find it.
_QUOTED_INPUT = re.compile(r"input_value=.*(?=, input_type=)")
# Additions of a database and SQLAlchemy, which also cut values in the middle.
_BY_SERVER = re.compile(
    r"(?:\n|\\n)\s*(?:DETAIL|HINT|CONTEXT|QUERY|LINE \d+|\[SQL|\[parameters):.*", re.DOTALL
)
_CUT = "…"  # at the end of a text that was cut
Path = tuple[str, ...]


class Masks:
    """Rules that say which values of payloads and results are hidden."""

    def __init__(self, text: str = "") -> None:
        """Read rules that are separated by commas; raises ValueError."""
        self._rules: list[tuple[str, Path]] = []
        for rule in filter(None, map(str.strip, text.split(","))):
            if not _RULE.fullmatch(rule):
                raise ValueError(
                    "use paths, perhaps behind names: card.number,mail.*:**.password. "
                    "Lists have no part in a path: cards.number is of each card"
                )
            name, _, path = rule.rpartition(":")
            parts = path.split(".")
            while parts and parts[-1] == "**":
                parts.pop()
            self._rules.append((name or "*", tuple(parts)))
        self._paths = lru_cache(4096)(self._paths_of)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def covers(self, name: str) -> bool:
        """Whether a rule applies to tasks of this name."""
        return bool(self) and bool(self._paths(name))

    def value(self, name: str, value: Any) -> Any:
        return _hidden(value, self._paths(name)) if self.covers(name) else value

    def text(self, name: str, text: str, payload: Any) -> str:
        """Return a text without the values that are masked in this payload."""
        if not self.covers(name):
            return text
        return mask_values(_BY_SERVER.sub("", text), _masked(payload, self._paths(name)))

    def _paths_of(self, name: str) -> frozenset[Path]:
        return frozenset(path for pattern, path in self._rules if fnmatchcase(name, pattern))


@lru_cache(16)
def masks_of(text: str) -> Masks:
    return Masks(text)


def mask_values(text: str, values: Iterable[str]) -> str:
    """Replace these values in a text, the longest first; short ones stay."""
    found = sorted({each for each in values if len(each) >= SHORTEST_SECRET}, key=len, reverse=True)
    if not found:
        return text
    text = _QUOTED_INPUT.sub(f"input_value={MASK}", text)
    for each in found:
        text = text.replace(each, MASK)
    return _without_beginning(text[:-1], found) + _CUT if text.endswith(_CUT) else text


def _without_beginning(text: str, values: Iterable[str]) -> str:
    """Replace the beginning of a value at the end of a text that was cut."""
    begun = 0
    for each in values:
        for length in range(min(len(each), len(text)), max(begun, SHORTEST_SECRET - 1), -1):
            if text.endswith(each[:length]):
                begun = length
                break
    return text[: len(text) - begun] + MASK * bool(begun)


def leaf_texts(value: Any) -> Iterator[str]:
    """Yield all values (not keys) of a JSON document, in all forms that a text may quote."""
    match value:
        case dict():
            for child in value.values():
                yield from leaf_texts(child)
        case list():
            for child in value:
                yield from leaf_texts(child)
        case str():
            yield value
            yield repr(value)[1:-1]
            yield printable(value)
            yield json.dumps(value)[1:-1]
            yield json.dumps(value, ensure_ascii=False)[1:-1]
        case int() | float() if not isinstance(value, bool):
            yield str(value)
        case _:  # null, true and false are no secrets
            pass


def _hidden(value: Any, paths: frozenset[Path]) -> Any:
    if () in paths:
        return MASK
    match value:
        case dict() if paths:
            return {key: _hidden(each, _below(paths, key)) for key, each in value.items()}
        case list() if paths:
            return [_hidden(each, paths) for each in value]
        case _:
            return value


def _masked(value: Any, paths: frozenset[Path]) -> Iterator[str]:
    """Yield the hidden parts of a value, in the forms in which a text may quote them."""
    if () in paths:
        yield from leaf_texts(value)
        return
    match value:
        case dict() if paths:
            for key, each in value.items():
                yield from _masked(each, _below(paths, key))
        case list() if paths:
            for each in value:
                yield from _masked(each, paths)


def _below(paths: Iterable[Path], key: str) -> frozenset[Path]:
    """Return the rests of the paths after this key."""
    found: set[Path] = set()
    for path in paths:
        head, *rest = path
        if head == "**":
            found.add(path)
            found |= _below([tuple(rest)], key)
        elif fnmatchcase(key, head):
            found.add(tuple(rest))
    return frozenset(found)


ERASED = "erased"
ERASED_MARK = "$erased"
ERASED_BEGIN = f'{{"{ERASED_MARK}":'  # the beginning of an erased value; only an instant follows


def is_erased(text: str) -> bool:
    """Whether a stored payload was erased; a user's may have this key beside others."""
    if text.startswith(ERASED_BEGIN):
        with suppress(ValueError, RecursionError):
            return len(json.loads(text)) == 1
    return False


def check_not_erased(text: str) -> None:
    """Raise InvalidTaskError if a new payload looks like an erased one."""
    if is_erased(text):
        path = f"payload.{ERASED_MARK}"
        raise InvalidTaskError(path, "is the only key", "another name, or further keys")
