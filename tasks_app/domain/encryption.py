"""The keyring that encrypts and decrypts values, and the form in which they are stored."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks_app.domain.errors import ConfigurationError, InvalidTaskError, TasksError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


KEY_BYTES = 32
SALT_BYTES = 24
_NONCE_BYTES = 12
_INFO = b"tasks_app value v1"
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")


LOOKS = "such as 2026-01:base64-of-32-bytes,2025-01:…; tasks-app encryption new-key makes one"


TOKEN_MARK = "$encrypted"  # noqa: S105  no password


TOKEN_VERSION = "v1"  # noqa: S105


HIDDEN_VALUE = "encrypted"  # what people see of an encrypted text


TOKEN_BEGIN = f'{{"{TOKEN_MARK}":'  # the beginning of the JSON text of each encrypted value


_TOKEN = re.compile(r"(v\d+)\.([A-Za-z0-9_-]{1,40})\.([A-Za-z0-9_-]+)")


NO_KEY = "none is configured"


class MissingKeyError(TasksError):
    """This process lacks the key to encrypt or decrypt a value."""

    def __init__(self, key_id: str | None) -> None:
        super().__init__(f"The encryption key is missing here: {key_id or NO_KEY}.")
        self.key_id = key_id


class SealBrokenError(TasksError):
    """A value was changed after encryption, belongs to another task name, or has another key."""


class Keyring:
    """Keys by id; neither ``repr`` nor an error shows one."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)
        self.current: str | None = next(iter(self._keys), None)  # the id of the key that encrypts

    def __repr__(self) -> str:
        return f"<keyring {', '.join(self._keys) or 'without keys'}>"

    def __contains__(self, key_id: str) -> bool:
        return key_id in self._keys

    def with_first(self, keys: Mapping[str, bytes]) -> Keyring:
        return Keyring({**keys, **{k: v for k, v in self._keys.items() if k not in keys}})

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def seal(self, text: str, kind: str, name: str) -> Token:
        """Encrypt a text as this kind of value of tasks of this name. Raises MissingKeyError."""
        if self.current is None:
            raise MissingKeyError(None)
        salt = os.urandom(SALT_BYTES)
        cipher, nonce = _cipher(self._keys[self.current], salt)
        sealed = salt + cipher.encrypt(nonce, text.encode(), _context(self.current, kind, name))
        data = base64.urlsafe_b64encode(sealed).decode().rstrip("=")
        return Token(TOKEN_VERSION, self.current, data)

    def open(self, token: Token, kind: str, name: str) -> str:
        """Return the text of a token.

        Raises MissingKeyError; or SealBrokenError: it was not encrypted as this kind and name.
        """
        if token.version != TOKEN_VERSION:
            raise MissingKeyError(f"{token.key_id} (of form {token.version})")
        key = self._keys.get(token.key_id)
        if key is None:
            raise MissingKeyError(token.key_id)
        check_package()
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  an extra

        try:
            sealed = base64.urlsafe_b64decode(token.data + "=" * (-len(token.data) % 4))
            cipher, nonce = _cipher(key, sealed[:SALT_BYTES])
            context = _context(token.key_id, kind, name)
            return cipher.decrypt(nonce, sealed[SALT_BYTES:], context).decode()
        except (InvalidTag, ValueError):
            raise SealBrokenError(
                f"The {kind} cannot be decrypted with the key {token.key_id}: it was changed, "
                "belongs to a task of another name, or another key has that id."
            ) from None


def read_keys(text: str) -> dict[str, bytes]:
    """Read ``id:base64``, several separated by commas or lines; a line with # is a comment.

    Raises ValueError: it says what is allowed, without the given text.
    """
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return check_keys(
        each.strip().partition(":")[::2] for each in ",".join(lines).split(",") if each.strip()
    )


def check_keys(pairs: Iterable[tuple[object, object]]) -> dict[str, bytes]:
    """Return keys by id from ids and keys, which are bytes or base64; raises ValueError."""
    keys: dict[str, bytes] = {}
    for key_id, given in pairs:
        if not isinstance(key_id, str) or not _ID.fullmatch(key_id):
            raise ValueError(f"an id has other characters than letters, digits, - and _: {LOOKS}")
        key = given if isinstance(given, bytes) else None
        if isinstance(given, str):
            with suppress(ValueError):  # accepts both base64 alphabets
                text = given.strip().replace("-", "+").replace("_", "/")
                key = base64.b64decode(text, validate=True)
        if key is None or len(key) != KEY_BYTES:
            raise ValueError(f"the key of {key_id} is not {KEY_BYTES} bytes as base64: {LOOKS}")
        if key_id in keys:
            raise ValueError(f"two keys have the id {key_id}: give each its own")
        keys[key_id] = key
    return keys


def new_key() -> str:
    return base64.urlsafe_b64encode(os.urandom(KEY_BYTES)).decode()


def check_package() -> None:
    """Raise ConfigurationError if the package for encryption is not installed."""
    try:
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401, PLC0415  an extra
    except ImportError:
        raise ConfigurationError(
            "Encryption needs an extra. Run: pip install 'tasks_app[encryption]'"
        ) from None


def _cipher(key: bytes, salt: bytes) -> tuple[AESGCM, bytes]:
    """Return the cipher and nonce of one value; under this key no other value has this nonce."""
    check_package()
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  an extra
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    made = HKDF(SHA256(), KEY_BYTES + _NONCE_BYTES, salt, _INFO).derive(key)
    return AESGCM(made[:KEY_BYTES]), made[KEY_BYTES:]


class Token(NamedTuple):
    version: str
    key_id: str
    data: str  # URL-safe base64 without padding

    def __str__(self) -> str:
        return ".".join(self)


def _context(key_id: str, kind: str, name: str) -> bytes:
    return "\0".join((TOKEN_VERSION, key_id, kind, name)).encode()


def parse_token(text: str) -> Token | None:
    found = _TOKEN.fullmatch(text)
    return None if found is None else Token(*found.groups())


def wrap_token(token: Token) -> str:
    return f'{TOKEN_BEGIN} "{token}"}}'


def token_in(text: str | None) -> Token | None:
    """Return the token in a JSON text; None: it is not encrypted."""
    if text is not None and text.startswith(TOKEN_BEGIN):
        with suppress(ValueError, RecursionError):
            return token_of(json.loads(text))
    return None


def token_of(value: Any) -> Token | None:
    """Return the token of a decoded JSON value; None: it is not encrypted."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    text = value.get(TOKEN_MARK)
    return parse_token(text) if isinstance(text, str) else None


def check_no_token(text: str) -> None:
    """Refuse a payload that looks like a stored token: its handler would get the decrypted value.

    Raises InvalidTaskError.
    """
    if token_in(text) is not None:
        raise InvalidTaskError(f"payload.{TOKEN_MARK}", "is an encrypted value", "the value itself")


def conceal_value(value: Any) -> Any:
    """Return a JSON value for people: of an encrypted one, which key decrypts it."""
    token = token_of(value)
    return value if token is None else f"{HIDDEN_VALUE} (key {token.key_id})"
