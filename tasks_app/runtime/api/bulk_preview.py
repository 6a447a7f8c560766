"""What a bulk would do, without doing it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.operations import BulkAction
from tasks_app.domain.operations import Selection
from tasks_app.pool.operations.audit import take_turn
from tasks_app.pool.operations.selection import SelectionCut, cut, look, read
from tasks_app.runtime.api.bulk import checked, transaction_of
from tasks_app.runtime.api.bulk_step import MOST_EDITED, Edits, read_opening
from tasks_app.runtime.handlers.registry import HANDLERS, Registry


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a bulk would do now."""

    counts: Counter[tuple[str, str]]
    """Tasks that it would act on, by name and state."""
    left_out: dict[str, list[int]]
    """Ids of those whose new payload would be refused, by reason."""
    more: bool = False
    """There are more than were counted."""


def foresee_bulk(
    engine: Engine,
    action: str,
    *,
    patch: Mapping[str, Any] | None = None,
    registry: Registry = HANDLERS,
    most: int | None = None,
    **selection: Any,
) -> Foreseen:
    """Count the tasks that ``start_bulk`` would mean; change nothing and lock nothing.

    ``most``: count no further when there are so many.

    >>> foresee_bulk(engine, "requeue", name="card.charge").counts.total()
    1

    Raises:
        InvalidSelectionError: as ``start_bulk`` raises it.
    """
    what, _, chosen = checked(action, selection, patch)
    with transaction_of(engine) as connection:
        end = cut(connection)
    return _walk(engine, what, chosen, end, 0, Edits(patch, registry), most)


def foresee_rest(engine: Engine, token: int, *, registry: Registry = HANDLERS) -> Foreseen | None:
    """Count the tasks that are left of a bulk. None: there is no such token.

    >>> token = start_bulk(engine, "requeue", name="card.charge")
    >>> foresee_rest(engine, token).counts.total()
    1
    """
    with transaction_of(engine) as connection:
        opening = take_turn(connection, token)
    if opening is None:
        return None
    action, _, chosen, end = read_opening(opening)
    edits = Edits(opening.patch, registry)
    return _walk(engine, action, chosen, end, opening.after, edits)


def _walk(
    engine: Engine,
    action: BulkAction,
    chosen: Selection,
    end: SelectionCut,
    after: int | None,
    edits: Edits,
    most: int | None = None,
) -> Foreseen:
    counts: Counter[tuple[str, str]] = Counter()
    left_out: dict[str, list[int]] = defaultdict(list)
    while after is not None and (most is None or counts.total() < most):
        with transaction_of(engine) as connection:
            found, after = look(
                connection, chosen, end, after, MOST_EDITED if action is BulkAction.EDIT else 500
            )
            counts.update((one.name, str(one.state)) for one in found)
            ids = [one.id for one in found] if action is BulkAction.EDIT else []
            for one in read(connection, chosen, end, ids) if ids else ():
                try:
                    edits.payload(one)
                except InvalidSelectionError as why:
                    left_out[str(why)].append(one.id)
    return Foreseen(counts, dict(left_out), after is not None)
