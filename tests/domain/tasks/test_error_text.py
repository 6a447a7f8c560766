"""Hostile exceptions as text that can always be stored."""

from __future__ import annotations

import linecache
import time
from collections.abc import Callable
from typing import Any

import pytest

from tasks_app.domain.tasks.error_text import (
    LONGEST_MESSAGE,
    LONGEST_TRACEBACK,
    cause_of,
    first_line,
    printable,
    storable_text,
)
from tasks_app.domain.tasks.run import Cause


def caught(act: Callable[[], object]) -> Cause:
    try:
        act()
    except BaseException as error:
        return cause_of(error)
    raise AssertionError("nothing was raised")


def raised(error: BaseException) -> Cause:
    def act() -> None:
        raise error

    return caught(act)


def compiled(source: str) -> dict[str, Any]:
    """The names of a file that tracebacks quote."""
    names: dict[str, Any] = {}
    linecache.cache["<made>"] = (len(source), None, source.splitlines(keepends=True), "<made>")
    exec(compile(source, "<made>", "exec"), names)
    return names


def assert_storable(cause: Cause) -> None:
    for text in (cause.kind, cause.message, cause.traceback or ""):
        assert type(text) is str
        assert "\x00" not in text
        text.encode("utf-8")
    assert len(cause.kind) <= 200
    assert len(cause.message) <= LONGEST_MESSAGE
    assert len(cause.traceback or "") <= LONGEST_TRACEBACK


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not telling")


class QuitterError(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class NothingError(Exception):
    def __str__(self) -> str:
        return None  # noqa: PLE0307  that is its hostility


class Slippery(str):
    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def replace(self, *args, **kwargs) -> str:
        raise RuntimeError("no replacement")

    def __getitem__(self, key) -> str:
        raise RuntimeError("no item")


class EvasiveError(Exception):
    def __str__(self) -> str:
        return Slippery("caught all the same")


class NamelessError(Exception):
    __module__ = None  # type: ignore[assignment]


class Masked(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no module")


class GhostError(Exception, metaclass=Masked):
    pass


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("plain"), "plain"),
        (ValueError(), ""),
        (KeyError("key"), "'key'"),
        (UnspeakableError(), "(its text cannot be read: RuntimeError)"),
        (QuitterError(), "(its text cannot be read: SystemExit)"),
        (NothingError(), "(its text cannot be read: TypeError)"),
        (EvasiveError(), "caught all the same"),
        (ValueError("a\x00b"), "a\ufffdb"),
        (ValueError("a\ud800b"), "a?b"),
        (ValueError("\udcff" * 3), "???"),
        (ValueError("😀"), "😀"),
        (NamelessError("x"), "x"),
        (GhostError("x"), "x"),
        (ExceptionGroup("many", [ValueError(str(n)) for n in range(9)]), "many (9 sub-exceptions)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_any_exception_becomes_text_that_can_be_stored(error, message: str) -> None:
    cause = raised(error)
    assert_storable(cause)
    assert cause.message == message


def test_a_kind_says_where_the_class_lives_unless_it_is_built_in() -> None:
    assert raised(ValueError()).kind == "ValueError"
    assert raised(UnspeakableError()).kind.endswith("test_error_text.UnspeakableError")


def test_a_class_name_that_nobody_can_store_is_cleaned() -> None:
    hostile = type("x", (Exception,), {"__module__": "m\x00", "__qualname__": "q\ud800" * 500})
    assert_storable(raised(hostile("x")))


@pytest.mark.test_all
def test_a_message_of_a_hundred_megabytes_is_cut_quickly() -> None:
    started = time.monotonic()
    cause = raised(ValueError("x\x00" * 50_000_000))
    assert_storable(cause)
    assert cause.message.endswith("…")
    assert time.monotonic() - started < 2


def test_a_traceback_of_deep_recursion_keeps_only_the_frames_nearest_to_the_fault() -> None:
    def deeper(depth: int) -> None:
        if depth == 0:
            raise ValueError("at the bottom")
        deeper(depth - 1)

    cause = caught(lambda: deeper(800))
    assert_storable(cause)
    assert "at the bottom" in (cause.traceback or "")


def test_endless_recursion_is_described() -> None:
    def endless() -> None:
        endless()

    cause = caught(endless)
    assert_storable(cause)
    assert cause.kind == "RecursionError"


def test_long_source_lines_do_not_push_the_faults_own_line_out() -> None:
    source = "".join(f"def f{n}(): f{n + 1}() # {'x' * 3000}\n" for n in range(10))
    rooms = compiled(source + "def f10(): raise ValueError\n")
    cause = caught(rooms["f0"])
    assert_storable(cause)
    assert "in f10" in (cause.traceback or "")


def test_a_traceback_shows_no_values_of_local_variables() -> None:
    def charge(card: str) -> None:
        raise ValueError("refused")

    cause = caught(lambda: charge("4111" + "-1111"))
    assert "4111-1111" not in (cause.traceback or "")


def test_an_exception_that_was_never_raised_has_no_traceback() -> None:
    assert cause_of(ValueError("x")).traceback is None


@pytest.mark.parametrize("length", [0, 1, 9, 10, 11, 12, 1000])
def test_cleaning_never_exceeds_the_length(length: int) -> None:
    assert len(storable_text("\x00" * length, 10)) == min(length, 10)


HOSTILE = "one\x1b]0;owned\x07\x1b[2Jtwo\rINFO fake\x9b31m \u202e\u2028é\xa0😀\ttab"
TAMED = r"one\x1b]0;owned\x07\x1b[2Jtwo\rINFO fake\x9b31m \u202e\u2028é" + "\xa0😀\ttab"


def test_no_part_of_a_cause_drives_a_terminal_or_begins_a_line_of_the_log() -> None:
    forger = type("x\nERROR forged\x1b[2J", (Exception,), {"__module__": "builtins"})
    cause = raised(forger(f"{HOSTILE}\nsecond line"))
    assert cause.kind == r"x\nERROR forged\x1b[2J"
    assert cause.message == f"{TAMED}\nsecond line"
    assert first_line(forger("a\x1bb\nc")) == r"x\nERROR forged\x1b[2J: a\x1bb"


def test_a_traceback_keeps_its_lines_and_escapes_the_rest() -> None:
    rooms = compiled("def f():  # \x1b[2J\n\traise ValueError  # \x9b\u202e\n")
    trace = caught(rooms["f"]).traceback or ""
    assert r"\x9b\u202e" in trace
    assert trace == printable(trace)
    assert len(trace.splitlines()) > 2


def test_a_message_of_escapes_alone_stays_within_its_length() -> None:
    assert_storable(raised(ValueError("\x1b" * LONGEST_MESSAGE)))
