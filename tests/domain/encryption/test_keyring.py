"""Values that were encrypted open by their key alone, and as nothing else."""

from __future__ import annotations

import base64

import pytest

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
from tasks_app.domain.errors import InvalidTaskError

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
        '{"a": 1}',
        '{"$encrypted": 1}',
        '{"$encrypted": "v1.k1"}',
        text[:-1] + ', "a": 1}',
        text[:-1],
        f"[{text}]",
        None,
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
