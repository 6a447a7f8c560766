"""A process that has keys, and whatever it stored as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tasks_app.domain.encryption import new_key
from tasks_app.runtime.encryption.encryption import encryption

OLD, NEW = f"old:{new_key()}", f"new:{new_key()}"
Configure = Callable[..., None]


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    """Set variables of encryption for this process, as producer and reader."""

    def set_(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(f"TASKS_APP_{name.upper()}", value)
        encryption.cache_clear()

    set_(encryption_keys=OLD)
    yield set_
    encryption.cache_clear()
