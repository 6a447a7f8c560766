"""What all tests of the shop have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import shop
from sqlalchemy import Connection


@pytest.fixture(scope="session")
def tasks_app_tables() -> Callable[[Connection], None]:
    """The shop's own tables, in the database that the kit makes."""
    return shop.Base.metadata.create_all


class RecordingBank:
    """A bank that keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def charge(self, key: str, order_id: int) -> None:
        """Note the key."""
        self.asked.append(key)

    @property
    def charges(self) -> int:
        """How often somebody paid."""
        return len(set(self.asked))


@pytest.fixture(autouse=True)
def bank(monkeypatch: pytest.MonkeyPatch) -> RecordingBank:
    """The world outside of the database."""
    bank = RecordingBank()
    monkeypatch.setattr(shop.Shop, "bank", bank, raising=False)
    monkeypatch.setattr(shop.Shop, "mails", [], raising=False)
    return bank
