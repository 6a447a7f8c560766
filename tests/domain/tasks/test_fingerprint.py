"""One cause, one fingerprint: from raised exceptions, and from what is stored of them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tasks_app.domain.tasks.error_text import (
    fingerprint_of,
    parse_fingerprint,
    traits_of,
    without_values,
)
from tasks_app.domain.tasks.run import Cause
from tests.domain.tasks.test_error_text import caught

A_UUID = "9814f32b-800a-4498-ac9c-b657a15b6ddf"


def charge(order: object) -> None:
    raise LookupError(f"order {order} has no account")


def refund(order: object) -> None:
    raise LookupError(f"order {order} has no account")


def chained(order: int) -> None:
    try:
        charge(order)
    except LookupError as error:
        raise RuntimeError(f"could not bill {order}") from error


def grouped(order: int) -> None:
    raise ExceptionGroup("several", [ValueError(order)] * order)


def unparsable(order: int) -> None:
    compile("\n" * order + "a b", "rules.txt", "exec")


async def awaited(order: int) -> None:
    await asyncio.wait_for(later(order), 5)


async def later(order: int) -> None:
    await asyncio.sleep(0)
    charge(order)


def through_a_library(order: int) -> None:
    json.loads("{}", object_hook=lambda _: charge(order))


def in_a_library(order: int) -> None:
    json.loads("x" * order)


def endless(left: int) -> None:
    other(left + 30)


def other(left: int) -> None:
    if not left:
        raise RecursionError("too deep")
    around(left - 1)


def around(left: int) -> None:
    other(left)


def run_async(order: int) -> None:
    asyncio.run(awaited(order))


KINDS = (charge, chained, grouped, unparsable, run_async, through_a_library, in_a_library, endless)


@pytest.mark.parametrize("fail", KINDS)
def test_an_error_has_the_fingerprint_of_its_like(fail: Callable[[int], None]) -> None:
    first, second = caught(lambda: fail(1)), caught(lambda: fail(70))
    assert fingerprint_of(first) == fingerprint_of(second)
    assert len(fingerprint_of(first)) == 8
    assert len({fingerprint_of(caught(lambda each=each: each(3))) for each in KINDS}) == len(KINDS)


@pytest.mark.parametrize("fail", KINDS)
def test_a_deploy_changes_no_fingerprint(fail: Callable[[int], None]) -> None:
    now = caught(lambda: fail(4))
    trace = re.sub(r"line \d+", "line 9999", now.traceback or "")
    trace = re.sub(r'File "/.*?/tests/domain/', 'File "/srv/releases/8/tests/domain/', trace)
    assert fingerprint_of(Cause(now.kind, now.message, trace)) == fingerprint_of(now)


def test_frames_are_those_of_the_users_code_the_innermost_last() -> None:
    assert [f.split(":")[1] for f in traits_of(caught(lambda: run_async(1))).frames] == [
        *("<lambda>", "run_async", "awaited", "later", "charge")
    ]
    assert traits_of(caught(lambda: through_a_library(1))).frames[-3:] == (
        "tasks.test_fingerprint:through_a_library",
        "tasks.test_fingerprint:<lambda>",
        "tasks.test_fingerprint:charge",
    )
    assert "decoder" not in str(traits_of(caught(lambda: in_a_library(1))).frames)


def test_place_class_and_words_make_the_difference() -> None:
    one = caught(lambda: charge(1))
    assert fingerprint_of(caught(lambda: refund(1))) != fingerprint_of(one)
    assert fingerprint_of(Cause("KeyError", one.message, one.traceback)) != fingerprint_of(one)
    said = Cause(one.kind, "order 1 has two accounts", one.traceback)
    assert fingerprint_of(said) != fingerprint_of(one)


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("order 17 of 3.5e-7 kg at 2026-11-23T10:00:00Z", "order # of # kg at #T#Z"),
        (f"no {A_UUID} in {A_UUID.replace('-', '')}", "no # in #"),
        ("<shop.Order object at 0x7f00dead>", "<shop.Order object at #>"),
        ("can't read /var/spool/7/x.csv: denied", "can't read <path>: denied"),
        (r"can't read C:\spool\x.csv", "can't read <path>"),
        ("'Anne O'Hara' and 'Bob', \"x\"", "'…' and '…'"),
        (
            "GET https://a.example/7?x=y failed, ask a.b@example.org",
            "GET <url> failed, ask <address>",
        ),
        ("[1, 2, 3] and [4]", "[#] and [#]"),
        ("connect to 10.0.0.7:5432", "connect to #"),
        ("broken and/or late", "broken and/or late"),
        ('dup "k"\nDETAIL:  Key (a)=(Bob) exists.\n[SQL: INSERT]', "dup '…'"),
        (f"value '{'x' * 1900}…", "value '…'"),
        ("", ""),
    ],
)
def test_a_message_loses_its_values(message: str, kept: str) -> None:
    assert without_values(message) == kept


VALUES = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(str),
    st.uuids().map(str),
    st.uuids().map(lambda each: each.hex),
    st.datetimes().map(lambda each: each.strftime("%Y-%m-%d")),
    st.integers(0, 2**64).map(hex),
    st.ip_addresses(v=4).map(str),
)


@given(VALUES, VALUES)
@example("1e-07", "-2")
def test_values_make_no_difference(one: str, two: str) -> None:
    def said(value: str) -> bytes:
        return fingerprint_of(Cause("KeyError", f"row {value} of ({value}) is gone"))

    assert said(one) == said(two)


@given(st.text(st.characters(exclude_characters="'\\", categories=["L", "N", "P", "Zs"])))
def test_quoted_texts_make_no_difference(value: str) -> None:
    assert without_values(f"key '{value}' is gone") == "key '…' is gone"


@given(st.text(max_size=2000), st.text(max_size=3000))
def test_any_text_has_a_fingerprint(message: str, traceback: str) -> None:
    assert len(fingerprint_of(Cause("E", message, traceback))) == 8


def test_a_written_fingerprint_is_read_or_refused() -> None:
    fingerprint = fingerprint_of(Cause("E", ""))
    assert parse_fingerprint(fingerprint.hex()) == fingerprint
    for wrong in ("", "12", "zz" * 8, "00" * 9):
        with pytest.raises(ValueError, match="is not a fingerprint"):
            parse_fingerprint(wrong)
