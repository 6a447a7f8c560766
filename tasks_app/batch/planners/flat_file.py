"""An existing file in segments, or a table that is first extracted to one."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from tasks_app.batch.files.segments import body_of, segments
from tasks_app.domain.partition.cuts import Amount
from tasks_app.domain.partition.keys import KeyType
from tasks_app.domain.partition.records import File, Plan
from tasks_app.pool.batch.sources.predicate import copy_as_csv
from tasks_app.pool.batch.sources.relation import Source


@dataclass(frozen=True, slots=True)
class FlatFile(Amount):
    """Segments of about as many bytes, cut at ends of records; the file is read once for it.

    ``rows`` estimates the length of a record from the first ones.
    """

    def plan(self, connection: Connection | None, source: File) -> Plan:  # noqa: ARG002
        """Split; an empty file has no segments. Raises PlanError as ``segments`` does."""
        low, high = body_of(source)
        size, rows = high - low, None
        if self.rows is not None:
            with Path(source.path).open("rb") as stream:
                stream.seek(low)
                sample = stream.read(2**16)
            rows = max(1, round(size * max(1, sample.count(b"\n")) / max(1, len(sample))))
        made = tuple(segments(source, self.number_for(rows, size)))
        total = sum(each.rows or 0 for each in made)
        return Plan("flat file", KeyType.INTEGER, made, total)


@dataclass(frozen=True, slots=True)
class Extract(Amount):
    """A table or query, written to a CSV file by COPY in one snapshot, and split there.

    The table is read only once. That pays where each partition would read much of it, or would
    meet its writers.
    """

    path: str = ""  # where all workers find it. An existing file is replaced as a whole.

    @property
    def file(self) -> File:
        return File(self.path)

    def plan(self, connection: Connection, source: Source) -> Plan:
        """Write the file and its manifest, and split it. Raises OSError if it cannot write."""
        new = Path(f"{self.path}.new")
        with new.open("wb") as out:
            copy_as_csv(connection, source, out)
            out.flush()
            os.fsync(out.fileno())
        new.replace(self.path)
        plan = FlatFile(self.parts, self.rows, self.size, self.over).plan(None, self.file)
        Path(f"{self.path}.manifest.json").write_text(json.dumps(manifest(plan), indent=1))
        return Plan("extract", plan.key_type, plan.partitions, plan.rows)


def manifest(plan: Plan) -> dict[str, Any]:
    return {
        "records": plan.rows,
        "segments": [
            {
                "number": each.number,
                "path": each.source,
                "first_byte": each.range.low,
                "end_byte": each.range.high,
                "records": each.rows,
                "sha256": each.checksum,
            }
            for each in plan.partitions
            if each.range is not None
        ],
    }
