"""Durations, logging, keys, locks and selections."""

from __future__ import annotations

import base64
import logging
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks_app.domain.durations import LONGEST, MIB, format_duration, parse_bytes, parse_duration
from tasks_app.domain.encryption import (
    Keyring,
    MissingKeyError,
    SealBrokenError,
    Token,
    conceal_value,
    new_key,
    parse_token,
    read_keys,
    token_in,
    token_of,
    wrap_token,
)
from tasks_app.domain.errors import InvalidSelectionError, InvalidTaskError
from tasks_app.domain.locks import MOST_RESOURCES, LockMode, LockPart, lock_parts
from tasks_app.domain.operations import MOST_IDS, BulkAction, Selection, parse_selection
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.locks import InvalidLockError

SPANS = st.timedeltas(timedelta(0), LONGEST)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (0, 0),
        (30, 30),
        (1.5, 1.5),
        ("30", 30),
        ("30s", 30),
        ("250ms", 0.25),
        ("1.5h", 5400),
        (" 10 m ", 600),
        ("1d", 86400),
        (timedelta(minutes=2), 120),
        ("0", 0),
    ],
)
def test_a_duration_is_read_in_every_way_that_people_write_it(written, seconds) -> None:
    assert parse_duration(written) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "s", "5 seconds", "-5s", "+5s", "1e3", "5s\x00", "1h30m", "5s,30s", "nan", "inf"),
        *("٣ fortnights", "9" * 400, "9" * 400 + "d", -1, -0.001, float("nan"), float("inf")),
        *(-float("inf"), 10**400, 10**5000, 1e300, True, False, None, [], {}, b"5s"),
        *(timedelta(seconds=-1), timedelta.max, timedelta.min, LONGEST + timedelta(microseconds=1)),
        "3661d",
    ],
    ids=lambda value: (
        f"{type(value).__name__}-{str(value)[:12] if value != 10**5000 else '10^5000'}"
    ),
)
def test_what_is_no_duration_is_a_value_error(wrong) -> None:
    with pytest.raises(ValueError, match=r"duration|outside 0 \.\. 3660 days"):
        parse_duration(wrong)


def test_a_refusal_repeats_only_the_beginning_of_a_long_value() -> None:
    with pytest.raises(ValueError, match="not a duration") as refused:
        parse_duration("secret " * 10_000)
    assert len(str(refused.value)) < 200


@given(SPANS)
def test_every_span_survives_being_written_and_read(span: timedelta) -> None:
    assert parse_duration(format_duration(span)) == span


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (30, "30s"),
        (90, "90s"),
        (600, "10m"),
        (86400, "1d"),
        (7200, "2h"),
    ],
)
def test_a_span_is_written_in_the_largest_unit_that_fits(seconds: float, written: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == written


@given(st.text(max_size=20) | st.floats() | st.integers() | st.none() | st.binary(max_size=4))
def test_anything_at_all_is_a_span_within_bounds_or_a_value_error(value) -> None:
    try:
        span = parse_duration(value)
    except ValueError:
        return
    assert timedelta(0) <= span <= LONGEST


class _RaisingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("no log")


def test_a_handler_that_raises_is_not_heard() -> None:
    log = quiet_logger("tasks_app.test.quiet")
    handler = _RaisingHandler()
    log.addHandler(handler)
    try:
        log.error("lost")
    finally:
        log.removeHandler(handler)


def test_it_is_the_logger_of_its_name(caplog: pytest.LogCaptureFixture) -> None:
    log = quiet_logger("tasks_app.test.quiet")
    log.error("kept")
    assert log is logging.getLogger("tasks_app.test.quiet")
    assert [(r.message, r.funcName) for r in caplog.records] == [
        ("kept", "test_it_is_the_logger_of_its_name")
    ]


A, B = b"a" * 32, b"b" * 32
SECRET = '{"card": "canary ü"}'


def test_what_was_encrypted_comes_back() -> None:
    token = Keyring({"k1": A}).seal(SECRET, "payload", "t")
    assert Keyring({"k2": B, "k1": A}).open(token, "payload", "t") == SECRET
    assert "canary" not in wrap_token(token)
    assert token.key_id == "k1"


def test_the_first_key_encrypts() -> None:
    assert Keyring({"new": B, "old": A}).seal("x", "payload", "t").key_id == "new"


def test_equal_values_look_different() -> None:
    ring = Keyring({"k1": A})
    assert len({ring.seal("x", "payload", "t").data for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("kind", "name"), [("result", "t"), ("payload", "other"), ("t", "payload")]
)
def test_a_token_opens_only_as_its_own_kind_and_name(kind: str, name: str) -> None:
    ring = Keyring({"k1": A})
    token = ring.seal(SECRET, "payload", "t")
    with pytest.raises(SealBrokenError) as refusal:
        ring.open(token, kind, name)
    assert "canary" not in str(refusal.value)


def test_a_changed_byte_anywhere_breaks_it() -> None:
    ring = Keyring({"k1": A})
    token = ring.seal("x", "payload", "t")
    sealed = bytearray(base64.urlsafe_b64decode(token.data + "=="[: -len(token.data) % 4]))
    for place in range(len(sealed)):
        changed = bytes(sealed[:place]) + bytes([sealed[place] ^ 1]) + bytes(sealed[place + 1 :])
        data = base64.urlsafe_b64encode(changed).decode().rstrip("=")
        with pytest.raises(SealBrokenError):
            ring.open(token._replace(data=data), "payload", "t")


@pytest.mark.parametrize("data", ["", "A", "AAAA", "A" * 40, "A" * 1000])
def test_a_cut_or_invented_token_is_broken(data: str) -> None:
    with pytest.raises(SealBrokenError):
        Keyring({"k1": A}).open(Token("v1", "k1", data), "payload", "t")


def test_a_token_does_not_open_under_another_id_of_the_same_key() -> None:
    token = Keyring({"k1": A}).seal("x", "payload", "t")
    with pytest.raises(SealBrokenError):
        Keyring({"k2": A}).open(token._replace(key_id="k2"), "payload", "t")


def test_a_missing_key_is_named() -> None:
    token = Keyring({"k1": A}).seal("x", "payload", "t")
    with pytest.raises(MissingKeyError, match="k1"):
        Keyring({"k2": B}).open(token, "payload", "t")
    with pytest.raises(MissingKeyError, match="none is configured"):
        Keyring({}).seal("x", "payload", "t")


def test_no_key_is_shown() -> None:
    ring = Keyring({"k1": A})
    assert repr(ring) == str(ring) == "<keyring k1>"


def test_keys_are_read_from_lines_and_commas() -> None:
    one, two = new_key(), base64.b64encode(b"\xff" * 32).decode()
    keys = read_keys(f"# of May\nk1:{one}\n\n k2:{two} ,k3:{new_key()}\n")
    assert list(keys) == ["k1", "k2", "k3"]
    assert keys["k2"] == b"\xff" * 32


GIVEN = base64.b64encode(b"k" * 32).decode()


@pytest.mark.parametrize(
    "text", ["k1", "k1:", "k1:c2hvcnQ=", f"k.1:{GIVEN}", f":{GIVEN}", "k1:!" + "A" * 43]
)
def test_a_wrong_key_is_refused_without_a_word_of_it(text: str) -> None:
    with pytest.raises(ValueError, match="such as 2026-01") as refusal:
        read_keys(text)
    assert len(text) < 9 or text.partition(":")[2] not in str(refusal.value)


def test_two_keys_of_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="two keys have the id k1"):
        read_keys(f"k1:{new_key()},k1:{new_key()}")


def test_only_the_token_alone_is_an_encrypted_value() -> None:
    token = Keyring({"k1": A}).seal("x", "payload", "t")
    text = wrap_token(token)
    assert token_in(text) == token_in(text.replace(": ", ":")) == parse_token(str(token)) == token
    for other in (
        *('{"a": 1}', '{"$encrypted": 1}', '{"$encrypted": "v1.k1"}', text[:-1] + ', "a": 1}'),
        *(text[:-1], f"[{text}]", None),
    ):
        assert token_in(other) is None
    assert token_of([]) is None


def test_people_see_which_key_it_needs() -> None:
    token = Keyring({"k1": A}).seal("x", "payload", "t")
    assert conceal_value({"$encrypted": str(token)}) == "encrypted (key k1)"
    assert conceal_value({"a": 1}) == {"a": 1}


def test_a_token_is_no_payload() -> None:
    from tasks_app.domain.creation import NewTask, validate_plain, validate_task

    stored = {"$encrypted": str(Keyring({"k1": A}).seal("x", "payload", "t"))}
    terms = validate_task(NewTask("t"), None, 1000).terms
    with pytest.raises(InvalidTaskError, match=r"payload\.\$encrypted is an encrypted value"):
        validate_task(NewTask("t", stored), None, 1000)
    assert validate_plain(NewTask("t", stored), terms, 1000) is None


def test_a_group_is_in_one_order_whoever_names_it() -> None:
    one = lock_parts(["b", "ä", "B"], ["a"], {"c": 3})
    other = lock_parts(("B", "b", "ä"), "a", {"c": 3})
    assert one == other
    assert [part.resource for part in one] == ["B", "a", "b", "c", "ä"]
    assert one[3] == LockPart("c", LockMode.COUNTED, 3)


def test_a_text_is_one_name() -> None:
    assert lock_parts("account:7") == (LockPart("account:7", LockMode.EXCLUSIVE),)


@pytest.mark.parametrize(
    ("group", "says"),
    [
        ({}, "locks name no resource. Allowed: at least one."),
        ({"exclusive": [""]}, "exclusive has '' in it"),
        ({"shared": ["x" * 256]}, "shared has 'xxxx"),
        ({"exclusive": ["a\0b"]}, "exclusive has 'a"),
        ({"exclusive": ["\ud800"]}, "exclusive has"),
        ({"exclusive": [7]}, "exclusive has a int in it"),
        ({"exclusive": ["a"], "shared": ["a"]}, "shared names 'a' again"),
        ({"exclusive": ["a", "a"]}, "exclusive names 'a' again"),
        ({"counted": {"a": 0}}, r"counted\['a'\] is not a number of holders"),
        ({"counted": {"a": True}}, r"counted\['a'\] is not a number of holders"),
        ({"counted": {"a": 1.5}}, r"counted\['a'\] is not a number of holders"),
        ({"exclusive": map(str, range(MOST_RESOURCES + 1))}, "locks name 101 resources"),
    ],
)
def test_what_cannot_be_is_refused_by_name(group: dict, says: str) -> None:
    with pytest.raises(InvalidLockError, match=says):
        lock_parts(**group)


def test_each_action_has_its_pool() -> None:
    assert parse_selection(BulkAction.CANCEL, {"name": "t"}).pool is Pool.PENDING
    assert parse_selection(BulkAction.REQUEUE, {"name": "t"}).pool is Pool.ERROR
    assert (
        parse_selection(BulkAction.REQUEUE, {"name": "t", "state": "cancelled"}).pool
        is Pool.COMPLETED
    )
    assert parse_selection(BulkAction.EDIT, {"name": "t"}).state is State.PENDING
    assert parse_selection(BulkAction.EDIT, {"name": "t", "pool": "error"}).state is None


@pytest.mark.parametrize(
    ("action", "given", "problem"),
    [
        (BulkAction.CANCEL, {}, "selects every task"),
        (BulkAction.CANCEL, {"pool": "pending", "ids": ()}, "selects every task"),
        (BulkAction.CANCEL, {"state": "RUNNING"}, "selects every task"),
        (BulkAction.CANCEL, {"name": "t", "pool": "error"}, "Only tasks of the pool pending"),
        (
            BulkAction.REQUEUE,
            {"name": "t", "state": "PENDING"},
            "Only tasks of the pool error or comp",
        ),
        (BulkAction.REQUEUE, {"name": "t", "pool": "error", "state": "SKIPPED"}, "Only tasks"),
        (BulkAction.EDIT, {"name": "t", "state": "RUNNING"}, "already has its payload"),
        (BulkAction.CANCEL, {"name": "t", "state": "LATE"}, "There is no state"),
        (BulkAction.CANCEL, {"name": "t", "pool": "big"}, "There is no pool"),
        (BulkAction.CANCEL, {"older_than": "soon"}, "older_than is 'soon'"),
        (BulkAction.CANCEL, {"colour": "red"}, "Tasks cannot be selected by colour"),
        (BulkAction.CANCEL, {"ids": range(MOST_IDS + 1)}, "too many"),
    ],
)
def test_what_cannot_be_meant_is_refused(action: BulkAction, given: Any, problem: str) -> None:
    with pytest.raises(InvalidSelectionError, match=problem):
        parse_selection(action, given)


def test_it_is_read_again_as_it_was_written() -> None:
    chosen = parse_selection(
        BulkAction.CANCEL,
        {"name": "t", "older_than": "90m", "newer_than": timedelta(days=2), "ids": [3, 1, 3]},
    )

    assert chosen == parse_selection(BulkAction.CANCEL, chosen.plain())
    assert chosen == Selection(
        Pool.PENDING,
        name="t",
        older_than=timedelta(minutes=90),
        newer_than=timedelta(days=2),
        ids=(1, 3),
    )


def test_memory_has_a_unit() -> None:
    given = ["512kB", "512MB", " 1.5 gb "]
    assert [parse_bytes(each) for each in given] == [512 * 1024, 512 * MIB, 1536 * MIB]
    for nonsense in ("512", "-1MB", "0MB", "MB", "", "1e3MB", "9999999GB"):
        with pytest.raises(ValueError, match="is no amount of memory"):
            parse_bytes(nonsense)
