"""Which values this process encrypts, with which keys, and the sources of the keys."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from tasks_app.domain.encryption import (
    HIDDEN_VALUE,
    Keyring,
    MissingKeyError,
    Token,
    check_keys,
    check_package,
    read_keys,
    token_in,
    wrap_token,
)
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.run import Cause

if TYPE_CHECKING:
    from tasks_app.domain.config.settings import EncryptionSettings


log = quiet_logger(__name__)
PAYLOAD, RESULT, ERROR = "payload", "result", "error"  # a token opens as its own kind only
AGAIN_S = 5.0  # how often a missing key makes this process read its source again


class Encryption:
    def __init__(
        self, settings: EncryptionSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = Lock()
        self._keyring: Keyring | None = None
        self._read_at = 0.0
        self.patterns = settings.encrypted
        # Whether the settings encrypt tasks of this name and queue.
        self.asks: Callable[[str, str], bool] = lru_cache(4096)(self._matches)

    @property
    def keyring(self) -> Keyring:
        if self._keyring is None:
            with self._lock:
                if self._keyring is None:
                    self._read()
        assert self._keyring is not None  # noqa: S101  read above
        return self._keyring

    def has_key(self) -> bool:
        """Whether there is a key to encrypt with, perhaps since a moment ago."""
        if self.keyring.current is None:
            self._read_again()
        return self.keyring.current is not None

    def sealed(self, text: str, kind: str, name: str) -> str:
        """Encrypt a JSON text as JSON text; MissingKeyError: there is no key."""
        return wrap_token(self.keyring.seal(text, kind, name))

    def opened(self, text: str, kind: str, name: str) -> str:
        """Return a stored JSON text decrypted, if it is encrypted. The errors of Keyring.open."""
        token = token_in(text)
        return text if token is None else self.opened_token(token, kind, name)

    def opened_token(self, token: Token, kind: str, name: str) -> str:
        """Return the text of a token; the same errors."""
        try:
            return self.keyring.open(token, kind, name)
        except MissingKeyError:
            if not self._read_again():
                raise
            return self.keyring.open(token, kind, name)

    def hidden(self, cause: Cause, name: str) -> Cause:
        """Encrypt the text of a cause, beside its place; MissingKeyError: there is no key."""
        if not cause.message:
            return cause
        token = self.keyring.seal(cause.message, ERROR, name)
        return replace(cause, message=HIDDEN_VALUE, encrypted=str(token))

    def _matches(self, name: str, queue: str) -> bool:
        return any(
            fnmatchcase(queue, pattern.removeprefix("queue:"))
            if pattern.startswith("queue:")
            else fnmatchcase(name, pattern)
            for pattern in self.patterns
        )

    def _read_again(self) -> bool:
        """Read the source of keys again, which may have new ones; False: not yet, or it failed."""
        settings = self._settings
        if not (settings.encryption_keys_file or settings.encryption_keys_from):
            return False
        with self._lock:
            if self._clock() - self._read_at < AGAIN_S:
                return False
            try:
                self._read()
            except ConfigurationError as error:  # the keys stay as they were
                log.warning("the encryption keys cannot be read again: %s", error)
                return False
        return True

    def _read(self) -> None:
        self._read_at = self._clock()
        keys = keys_of(self._settings)
        if keys:
            check_package()
        # Earlier keys stay: a run that has begun may need one at its end.
        self._keyring = Keyring(keys) if self._keyring is None else self._keyring.with_first(keys)


@cache
def encryption() -> Encryption:
    from tasks_app.domain.config.settings import load_settings  # noqa: PLC0415  slow to import

    return Encryption(load_settings())


SOURCES = ("encryption_keys", "encryption_keys_file", "encryption_keys_from")


def keys_of(settings: EncryptionSettings) -> dict[str, bytes]:
    """Return the keys by id, the one that encrypts first. Errors show no part of the keys."""
    given = [word for word in SOURCES if getattr(settings, word)]
    if len(given) > 1:
        names = " and ".join(f"TASKS_APP_{word.upper()}" for word in given)
        raise ConfigurationError(f"{names} are both set. Set one of them.")
    if not given:
        return {}
    try:
        if settings.encryption_keys is not None:
            return read_keys(settings.encryption_keys.get_secret_value())
        if settings.encryption_keys_file:
            return read_keys(Path(settings.encryption_keys_file).read_text("utf-8"))
        keys = _function(settings.encryption_keys_from)()
        return check_keys(keys.items()) if isinstance(keys, Mapping) else read_keys(str(keys))
    except UnicodeDecodeError:
        problem = "it isn't text"
    except OSError as error:
        problem = f"it cannot be read: {error.strerror}"
    except ValueError as error:
        problem = str(error)
    except Exception as error:  # of the user's function: its text may hold anything
        problem = f"its function raised {type(error).__name__}"
    raise ConfigurationError(f"TASKS_APP_{given[0].upper()} is wrong: {problem}.")


def _function(name: str) -> Callable[[], object]:
    module, _, function = name.partition(":")
    try:
        found: Callable[[], object] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError):
        raise ValueError(f"{name} isn't a function; write module:function") from None
    return found
