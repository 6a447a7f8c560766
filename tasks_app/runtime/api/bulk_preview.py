"""What a bulk would do, found out without doing it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.operations.selection import Action, Selection
from tasks_app.pool.operations.audit import take_turn
from tasks_app.pool.operations.selection import Cut, cut, look, read
from tasks_app.runtime.api.bulk import checked
from tasks_app.runtime.api.bulk_step import MOST_EDITED, Edits, read_opening
from tasks_app.runtime.handlers.registry import HANDLERS, Registry


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a bulk would do now."""

    counts: Counter[tuple[str, str]]
    """What it would be done to, by name and state."""
    left_out: dict[str, list[int]]
    """Ids of those of them whose new payloads would be refused, by reason."""


def foresee_bulk(
    engine: Engine,
    action: str,
    *,
    patch: Mapping[str, Any] | None = None,
    registry: Registry = HANDLERS,
    **selection: Any,
) -> Foreseen:
    """Count what ``start_bulk`` with these words would mean; changes nothing, holds nothing.

    Raises:
        InvalidSelectionError: as there.
    """
    what, chosen = checked(action, selection, patch)
    with engine.begin() as connection:
        end = cut(connection)
    return _walk(engine, what, chosen, end, 0, Edits(patch, registry))


def foresee_rest(engine: Engine, token: int, *, registry: Registry = HANDLERS) -> Foreseen | None:
    """Count what is left of a bulk; None: there is none of that token."""
    with engine.begin() as connection:
        opening = take_turn(connection, token)
    if opening is None:
        return None
    action, chosen, end = read_opening(opening)
    edits = Edits(opening.patch, registry)
    return _walk(engine, action, chosen, end, opening.after, edits)


def _walk(
    engine: Engine, action: Action, chosen: Selection, end: Cut, after: int | None, edits: Edits
) -> Foreseen:
    counts: Counter[tuple[str, str]] = Counter()
    left_out: dict[str, list[int]] = defaultdict(list)
    while after is not None:
        with engine.begin() as connection:
            found, after = look(
                connection, chosen, end, after, MOST_EDITED if action is Action.EDIT else 500
            )
            counts.update((one.name, str(one.state)) for one in found)
            ids = [one.id for one in found] if action is Action.EDIT else []
            for one in read(connection, chosen, end, ids) if ids else ():
                try:
                    edits.payload(one)
                except InvalidSelectionError as why:
                    left_out[str(why)].append(one.id)
    return Foreseen(counts, dict(left_out))
