"""Where keys come from: a variable, a file, or a function of the user's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tasks_app.domain.encryption import checked_keys
from tasks_app.domain.encryption import read_keys
from tasks_app.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from tasks_app.domain.config.encryption_settings import EncryptionSettings

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
