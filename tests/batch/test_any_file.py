"""Every record once: whatever ends lines, quotes fields or precedes them, wherever a file is cut.

`make test` tries the same files each time, `make stateful` others.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from tasks_app.batch.files.segments import FileReader, SegmentReader
from tasks_app.batch.planners.flat_file import FlatFile
from tasks_app.batch.validate import problems
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import File, Format, Partition

pytestmark = pytest.mark.test_all

EXAMPLES = int(os.environ.get("STATEFUL_EXAMPLES", "0"))
any_file = settings(
    max_examples=EXAMPLES or 60,
    derandomize=not EXAMPLES,
    phases=tuple(Phase) if EXAMPLES else (Phase.generate,),
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
PACKED = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
ENCODINGS = ["utf-8"] * 6 + ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1"]
LONG = "x" * 140_000
FIELD = st.text('aä\U0001f40d", \t\n\r\x0b\u2028\ufeff', max_size=4) | st.sampled_from(
    ["", "1", "\r\n", '"', LONG, LONG + '"\n']
)
PLAIN = st.text("aä ", max_size=3)
"""Of fields that are not put in quotes."""


def written(row: list[str], end: str, *, quoted: bool) -> str:
    """A record as COPY writes it."""
    words = ['"' + each.replace('"', '""') + '"' if quoted else each for each in row]
    return ",".join(words) + end


@st.composite
def contents(draw: st.DrawFn, width: int) -> tuple[list[list[str]], str, str]:
    """Records, the text of a file that has them, with blank lines in between, and its line ends."""
    end = draw(st.sampled_from(["\n", "\r\n", "\n", "\r\n", "\r"]))
    rows, text = [], ""
    for _ in range(draw(st.integers(0, 9))):
        quoted = draw(st.booleans())
        row = draw(st.lists(FIELD if quoted else PLAIN, min_size=width, max_size=width))
        rows.append(row)
        text += written(row, end, quoted=quoted)
        if draw(st.integers(0, 5)) == 0:
            text += end
            if width == 1:
                rows.append([""])
    whole = draw(st.booleans()) or rows[-1:] == [[""]]
    return rows, text if whole else text.removesuffix(end), end


def read_on(file: File, partition: Partition, connection: Any, data: st.DataObject) -> list[Any]:
    """The records of a segment, by runs of which some are killed, at most once a page."""
    reader, after, found = SegmentReader(file, partition), None, []
    while True:
        size = data.draw(st.integers(1, 4))
        if data.draw(st.integers(0, 4)) == 0:  # killed: nothing of it was committed
            reader.read(connection, after, size)
            reader = SegmentReader(file, partition)
        rows = reader.read(connection, after, size)
        last = reader.is_last(connection, rows, size)
        found += [row.fields for row in rows]
        after = json.loads(json.dumps(reader.after(rows))) if rows else after
        if last:
            return found


@pytest.mark.timeout(0)
@given(data=st.data())
@any_file
def test_every_record_is_read_once_or_the_file_is_refused(
    connection: Connection, tmp_path: Path, data: st.DataObject
) -> None:
    width = data.draw(st.integers(1, 3))
    header = data.draw(st.booleans())
    names = [f"n{number}" for number in range(width)]
    rows, text, end = data.draw(contents(width))
    before = data.draw(st.sampled_from(["", "", "\n", "\r\n"])) if header else ""
    first = before + written(names, end, quoted=data.draw(st.booleans())) if header else ""
    encoding = data.draw(st.sampled_from(ENCODINGS))
    packed = data.draw(st.sampled_from([None] * 6 + list(PACKED)))
    if encoding == "latin-1" and any(ord(letter) > 255 for letter in text):
        encoding = "utf-8"
    raw = (first + text).encode(encoding)
    path = tmp_path / "rows.csv"
    path.write_bytes(PACKED[packed](raw) if packed else raw)
    file = File(str(path), header=header)

    try:
        plan = FlatFile(parts=data.draw(st.integers(1, 5))).plan(None, file)
        assert problems(None, file, plan) == []  # type: ignore[arg-type]
        found = [row for each in plan.partitions for row in read_on(file, each, connection, data)]
    except (PlanError, AttributeError):
        if packed or encoding.startswith(("utf-16", "utf-32", "latin")) or end == "\r":
            return
        raise

    if not (header or text.strip("\r\n")):
        rows = []  # nothing but blank lines: nobody knows how many columns it has
    expected = [dict(zip(names, row, strict=True)) for row in rows] if header else rows
    assert found == expected
    assert plan.rows == len(found)
    assert sum(len(list(FileReader(file).records(each))) for each in plan.partitions) == len(found)


@given(
    rows=st.lists(st.dictionaries(PLAIN, FIELD | st.integers() | st.none()), max_size=5),
    end=st.sampled_from(["\n", "\r\n", "\n\n"]),
    mark=st.booleans(),
    data=st.data(),
)
@any_file
def test_every_line_of_json_is_read_once(
    connection: Connection, tmp_path: Path, rows: list, end: str, mark: bool, data: st.DataObject
) -> None:
    path = tmp_path / "rows.jsonl"
    text = "".join(json.dumps(row, ensure_ascii=False) + end for row in rows)
    path.write_bytes(text.encode("utf-8-sig" if mark else "utf-8"))
    file = File(str(path), Format.JSON_LINES)

    plan = FlatFile(parts=data.draw(st.integers(1, 5))).plan(None, file)

    assert problems(None, file, plan) == []  # type: ignore[arg-type]
    found = [row for each in plan.partitions for row in read_on(file, each, connection, data)]
    assert found == rows
    assert plan.rows == len(rows)
