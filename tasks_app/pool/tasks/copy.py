"""Copy: many rows by COPY, as text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter

from tasks_app.domain.tasks.records import KEYS, RowTemplate, TaskRow
from tasks_app.pool.tables import PENDING
from tasks_app.pool.tasks.insert import DEFAULTS, LINES, TERMS

_MOMENTS = ("created_at", "due_at", "scan_at")


def copy_of(
    ids: Sequence[int], rows: Sequence[TaskRow], clock: datetime, now: datetime | None = None
) -> tuple[str, Iterator[str]]:
    """Return a COPY of rows without a unique_key, and its text; ``clock`` is the server's time.

    What rows have in common becomes text once for each run of such rows.
    """
    runs = [(terms, list(run)) for terms, run in groupby(rows, TERMS)]
    kinds = dict.fromkeys(terms for terms, _ in runs)
    columns = [
        column
        for column, default in DEFAULTS.items()
        if any(getattr(terms, column) != default for terms in kinds)
    ]
    moments = {terms: _instants(terms, now or clock) for terms in kinds}
    if all(each == clock for three in moments.values() for each in three):
        moments = dict.fromkeys(kinds, ())
    ends = {
        terms: _line(terms.name, *(getattr(terms, column) for column in columns), *moments[terms])
        for terms in kinds
    }
    keys = [key for key in KEYS if any(map(attrgetter(key), rows))]
    written = ["id", "idempotency_key", "payload", *keys, "name", *columns]
    written += _MOMENTS if any(moments.values()) else ()
    sql = f"COPY {PENDING} ({', '.join(written)}) FROM STDIN"
    return sql, _pieces(iter(ids), [(ends[terms], run) for terms, run in runs], keys)


def _instants(terms: RowTemplate, instant: datetime) -> tuple[datetime, ...]:
    """Return when the row was made, is due and is scanned: a day has 24 hours in any zone."""
    due = (terms.run_at or instant).astimezone(UTC) + terms.delay
    return instant, due, due


def _pieces(
    ids: Iterator[int], runs: Iterable[tuple[str, Sequence[TaskRow]]], keys: Sequence[str]
) -> Iterator[str]:
    """Return lines; JSON holds no tab and no line's end of its own, but backslashes."""
    for end, run in runs:
        for start in range(0, len(run), LINES):
            part = run[start : start + LINES]
            payloads = [row[0].replace("\\", r"\\") for row in part]
            for key in keys:
                payloads = [
                    f"{text}\t{_field(getattr(row, key))}"
                    for text, row in zip(payloads, part, strict=True)
                ]
            lines = zip(payloads, ids, _uuids(len(part)), strict=False)  # the ids go on
            yield "".join([f"{i}\t{uuid}\t{text}\t{end}" for text, i, uuid in lines])


def _uuids(number: int) -> list[str]:
    """Return random UUIDs, of version 4. The server would ask its system for each of them."""
    digits = os.urandom(16 * number).hex()
    return [
        f"{digits[i : i + 12]}4{digits[i + 13 : i + 16]}a{digits[i + 17 : i + 32]}"
        for i in range(0, len(digits), 32)
    ]


def _line(*values: object) -> str:
    return "\t".join(map(_field, values)) + "\n"


def _field(value: object) -> str:
    match value:
        case None:
            return r"\N"
        case bool():
            return "t" if value else "f"
        case datetime():
            return value.isoformat()
        case _:
            return str(value).translate(_ESCAPES)


_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
