"""Keys in checkpoints come back as they were, type and all."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import pytest

from tasks_app.domain.partition.keys import pack_keyset, unpack_keyset

KEYS = [
    (5,),
    (-(2**63), "ä'\"\\"),
    (Decimal("1.1"), UUID(int=7)),
    (Decimal("-1234567890123456789012345678901234567890.5"),),
    (date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6, UTC), datetime(2026, 1, 2, 3)),  # noqa: DTZ001
    (time(1, 2, 3),),
]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_comes_back(key: tuple) -> None:
    again = unpack_keyset(json.loads(json.dumps(pack_keyset(key))))

    assert again == key
    assert [type(part) for part in again] == [type(part) for part in key]


@pytest.mark.parametrize(
    ("part", "why"), [(None, "null"), (True, "bool"), (b"x", "bytes"), (0.1, "floating point")]
)
def test_what_is_no_key(part: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        pack_keyset((1, part))
