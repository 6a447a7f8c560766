"""The keyring that encrypts and decrypts values, and the form in which they are stored."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks_app.domain.errors import ConfigurationError, InvalidTaskError, TasksError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


KEY_BYTES = 32
SALT_BYTES = 24
_NONCE_BYTES = 12
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_INFO = b"tasks_app value v1"
LOOKS = "such as 2026-01:base64-of-32-bytes,2025-01:…; tasks-app encryption new-key makes one"


class MissingKeyError(TasksError):
    """A value cannot be encrypted or opened here, because this process lacks the key."""

    def __init__(self, key_id: str | None) -> None:
        super().__init__(f"The encryption key is missing here: {key_id or NO_KEY}.")
        self.key_id = key_id


class SealBrokenError(TasksError):
    """A value was changed after it was encrypted, or belongs elsewhere, or its key is another."""


NO_KEY = "none is configured"


class Keyring:
    """Neither ``repr`` nor an error shows a key."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)
        self.current: str | None = next(iter(self._keys), None)
        """The id of the key that encrypts."""

    def __repr__(self) -> str:
        return f"<keyring {', '.join(self._keys) or 'without keys'}>"

    def __contains__(self, key_id: str) -> bool:
        return key_id in self._keys

    def with_first(self, keys: Mapping[str, bytes]) -> Keyring:
        """Return a keyring with these before its own."""
        return Keyring({**keys, **{k: v for k, v in self._keys.items() if k not in keys}})

    @property
    def ids(self) -> tuple[str, ...]:
        """The one that encrypts comes first."""
        return tuple(self._keys)

    def seal(self, text: str, kind: str, name: str) -> Token:
        """Encrypt a text as this kind of value of tasks of this name.

        Raises:
            MissingKeyError: there is no key.
        """
        if self.current is None:
            raise MissingKeyError(None)
        salt = os.urandom(SALT_BYTES)
        cipher, nonce = _cipher(self._keys[self.current], salt)
        bound = _bound(TOKEN_VERSION, self.current, kind, name)
        sealed = salt + cipher.encrypt(nonce, text.encode(), bound)
        return Token(
            TOKEN_VERSION, self.current, base64.urlsafe_b64encode(sealed).decode().rstrip("=")
        )

    def open(self, token: Token, kind: str, name: str) -> str:
        """Return the text of a token.

        Raises:
            MissingKeyError: its key is not here.
            SealBrokenError: it is not what was encrypted as this kind of value under this name.
        """
        if token.version != TOKEN_VERSION:
            raise MissingKeyError(f"{token.key_id} (of form {token.version})")
        key = self._keys.get(token.key_id)
        if key is None:
            raise MissingKeyError(token.key_id)
        try:
            sealed = base64.urlsafe_b64decode(token.data + "=" * (-len(token.data) % 4))
            cipher, nonce = _cipher(key, sealed[:SALT_BYTES])
            bound = _bound(token.version, token.key_id, kind, name)
            text: str = cipher.decrypt(nonce, sealed[SALT_BYTES:], bound).decode()
        except _broken():
            raise SealBrokenError(
                f"The {kind} cannot be decrypted with the key {token.key_id}: it was changed, or "
                "is of a task of another name, or another key has that id."
            ) from None
        return text


def read_keys(text: str) -> dict[str, bytes]:
    """Read ``id:base64``, several separated by commas or lines; a line with # is a comment.

    Raises:
        ValueError: with what is allowed, without what was given.
    """
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return checked_keys(
        each.strip().partition(":")[::2] for each in ",".join(lines).split(",") if each.strip()
    )


def checked_keys(pairs: Iterable[tuple[object, object]]) -> dict[str, bytes]:
    """Return keys by id, from ids and keys, which are bytes or base64.

    Raises:
        ValueError: with what is allowed, without what was given.
    """
    keys: dict[str, bytes] = {}
    for key_id, given in pairs:
        if not isinstance(key_id, str) or not _ID.fullmatch(key_id):
            raise ValueError(f"an id has other characters than letters, digits, - and _: {LOOKS}")
        key = given if isinstance(given, bytes) else _decoded(given)
        if key is None or len(key) != KEY_BYTES:
            raise ValueError(f"the key of {key_id} is not {KEY_BYTES} bytes as base64: {LOOKS}")
        if key_id in keys:
            raise ValueError(f"two keys have the id {key_id}: give each its own")
        keys[key_id] = key
    return keys


def new_key() -> str:
    """Return a random key as base64."""
    return base64.urlsafe_b64encode(os.urandom(KEY_BYTES)).decode()


def check_package() -> None:
    """Pass if values can be encrypted here.

    Raises:
        ConfigurationError: the package lacks.
    """
    try:
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401, PLC0415  an extra
    except ImportError:
        raise ConfigurationError(
            "Encryption needs an extra. Run: pip install 'tasks_app[encryption]'"
        ) from None


def _decoded(given: object) -> bytes | None:
    if not isinstance(given, str):
        return None
    try:
        return base64.b64decode(given.strip().translate(_AS_IN_URLS), validate=True)
    except (ValueError, binascii.Error):
        return None


_AS_IN_URLS = str.maketrans("-_", "+/")


def _cipher(key: bytes, salt: bytes) -> tuple[AESGCM, bytes]:
    """Return the cipher of one value, and its nonce, which no other value has under that key."""
    check_package()
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  an extra
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    made = HKDF(SHA256(), KEY_BYTES + _NONCE_BYTES, salt, _INFO).derive(key)
    return AESGCM(made[:KEY_BYTES]), made[KEY_BYTES:]


def _bound(*parts: str) -> bytes:
    return "\0".join(parts).encode()


def _broken() -> tuple[type[Exception], ...]:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415  an extra

    return (InvalidTag, ValueError)


TOKEN_MARK = "$encrypted"  # noqa: S105  no password
TOKEN_VERSION = "v1"  # noqa: S105
HIDDEN_VALUE = "encrypted"
"""What stands for an encrypted text where people read it."""
TOKEN_BEGIN = f'{{"{TOKEN_MARK}":'
"""With what the JSON text of each encrypted value begins."""
_TOKEN = re.compile(r"(v\d+)\.([A-Za-z0-9_-]{1,40})\.([A-Za-z0-9_-]+)")


class Token(NamedTuple):
    """The parts of a token."""

    version: str
    key_id: str
    data: str
    """base64, as in URLs and without its padding."""

    def __str__(self) -> str:
        return ".".join(self)


def parse_token(text: str) -> Token | None:
    """Return the parts of a token; None: it is none."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else Token(*found.groups())


def wrapped(token: Token) -> str:
    """Return the JSON text that holds a token."""
    return f'{TOKEN_BEGIN} "{token}"}}'


def token_in(text: str | None) -> Token | None:
    """Return the token that a JSON text holds and nothing beside it; None: it is not encrypted."""
    if text is None or not text.startswith(TOKEN_BEGIN):
        return None
    try:
        return token_of(json.loads(text))
    except (ValueError, RecursionError):
        return None


def token_of(value: Any) -> Token | None:
    """Return the token of a decoded JSON value; None: it is not encrypted."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    text = value.get(TOKEN_MARK)
    return parse_token(text) if isinstance(text, str) else None


def check_no_token(text: str) -> None:
    """Pass if a payload is no stored token: a handler would be given what it holds.

    Raises:
        InvalidTaskError: it is one.
    """
    if token_in(text) is not None:
        raise InvalidTaskError(f"payload.{TOKEN_MARK}", "is an encrypted value", "the value itself")


def concealed(value: Any) -> Any:
    """Return what people may see of a JSON value: of an encrypted one, which key opens it."""
    token = token_of(value)
    return value if token is None else f"{HIDDEN_VALUE} (key {token.key_id})"
