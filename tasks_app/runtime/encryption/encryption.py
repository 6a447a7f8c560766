"""Which values this process encrypts, with which keys, and where the keys come from."""

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
    check_package,
    checked_keys,
    read_keys,
    token_in,
    wrapped,
)
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.run import Cause

if TYPE_CHECKING:
    from tasks_app.domain.config.settings import EncryptionSettings


log = quiet_logger(__name__)
PAYLOAD, RESULT, ERROR = "payload", "result", "error"
"""Kinds of values. A token opens as its own kind only."""
AGAIN_S = 5.0
"""How often a missing key makes this process read its file, or call its function, again."""


class Encryption:
    """One process's; all its threads use it."""

    def __init__(
        self, settings: EncryptionSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = Lock()
        self._keyring: Keyring | None = None
        self._read_at = 0.0
        self.patterns = settings.encrypted
        self.asks: Callable[[str, str], bool] = lru_cache(4096)(self._asks)
        """Whether the settings say so of tasks of this name and queue."""

    @property
    def keyring(self) -> Keyring:
        """The keys.

        Raises:
            ConfigurationError: they cannot be read.
        """
        if self._keyring is None:
            with self._lock:
                if self._keyring is None:
                    self._read()
        assert self._keyring is not None  # noqa: S101  read above
        return self._keyring

    def has_key(self) -> bool:
        """Whether there is one to encrypt with, or one has come meanwhile."""
        if self.keyring.current is None:
            self._read_again()
        return self.keyring.current is not None

    def sealed(self, text: str, kind: str, name: str) -> str:
        """Return a JSON text encrypted, as JSON text.

        Raises:
            MissingKeyError: there is no key.
        """
        return wrapped(self.keyring.seal(text, kind, name))

    def opened(self, text: str, kind: str, name: str) -> str:
        """Return a stored JSON text as it was before it was encrypted, if it was.

        Raises:
            MissingKeyError: its key is not here, nor has it come meanwhile.
            SealBrokenError: it is no value of this kind and name.
        """
        token = token_in(text)
        if token is None:
            return text
        return self.opened_token(token, kind, name)

    def opened_token(self, token: Token, kind: str, name: str) -> str:
        """Return the text of a token; the same errors."""
        try:
            return self.keyring.open(token, kind, name)
        except MissingKeyError:
            if not self._read_again():
                raise
            return self.keyring.open(token, kind, name)

    def hidden(self, cause: Cause, name: str) -> Cause:
        """Return a cause without its text, which is encrypted beside it. The place stays.

        Raises:
            MissingKeyError: there is no key.
        """
        if not cause.message:
            return cause
        token = self.keyring.seal(cause.message, ERROR, name)
        return replace(cause, message=HIDDEN_VALUE, encrypted=str(token))

    def _asks(self, name: str, queue: str) -> bool:
        return any(
            fnmatchcase(queue, pattern.removeprefix("queue:"))
            if pattern.startswith("queue:")
            else fnmatchcase(name, pattern)
            for pattern in self.patterns
        )

    def _read_again(self) -> bool:
        """Read keys from where they may have come meanwhile; False: it was not time."""
        settings = self._settings
        if not (settings.encryption_keys_file or settings.encryption_keys_from):
            return False
        with self._lock:
            if self._clock() - self._read_at < AGAIN_S:
                return False
            try:
                self._read()
            except ConfigurationError as error:  # as it was before, until that is mended
                log.warning("the encryption keys cannot be read again: %s", error)
                return False
        return True

    def _read(self) -> None:
        self._read_at = self._clock()
        keys = keys_of(self._settings)
        if keys:
            check_package()
        # One that was here stays: a run that has begun may need it at its end.
        self._keyring = Keyring(keys) if self._keyring is None else self._keyring.with_first(keys)


@cache
def encryption() -> Encryption:
    """Return this process's."""
    from tasks_app.domain.config.settings import load_settings  # noqa: PLC0415  slow to import

    return Encryption(load_settings())


SOURCES = ("encryption_keys", "encryption_keys_file", "encryption_keys_from")


def keys_of(settings: EncryptionSettings) -> dict[str, bytes]:
    """Return the keys by id, the one that encrypts first; none, where none are configured.

    Raises:
        ConfigurationError: they cannot be read; it shows nothing of what was read.
    """
    given = [word for word in SOURCES if getattr(settings, word)]
    if len(given) > 1:
        names = " and ".join(f"TASKS_APP_{word.upper()}" for word in given)
        raise ConfigurationError(f"{names} are both set. Set one of them.")
    if not given:
        return {}
    try:
        return _read(settings)
    except UnicodeDecodeError:
        problem = "it is no text"
    except OSError as error:
        problem = f"it cannot be read: {error.strerror}"
    except ValueError as error:
        problem = str(error)
    except Exception as error:  # of the user's function: its text may hold anything
        problem = f"its function raised {type(error).__name__}"
    raise ConfigurationError(f"TASKS_APP_{given[0].upper()} is wrong: {problem}.")


def _read(settings: EncryptionSettings) -> dict[str, bytes]:
    if settings.encryption_keys is not None:
        return read_keys(settings.encryption_keys.get_secret_value())
    if settings.encryption_keys_file:
        return read_keys(Path(settings.encryption_keys_file).read_text("utf-8"))
    said = _function(settings.encryption_keys_from)()
    return checked_keys(said.items()) if isinstance(said, Mapping) else read_keys(str(said))


def _function(name: str) -> Callable[[], object]:
    module, _, function = name.partition(":")
    try:
        found: Callable[[], object] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError):
        raise ValueError(f"{name} is no function; write module:function") from None
    return found
