"""Files as people have them: each record is read once, or the plan says why it cannot be."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tasks_app.batch.files.reader import FileReader
from tasks_app.batch.files.records import Record
from tasks_app.batch.files.segments import verify
from tasks_app.batch.planners.flat_file import Extract, FlatFile
from tasks_app.batch.validate import problems
from tasks_app.domain.batch.records import BatchStatus
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import Plan
from tasks_app.domain.partition.sources import File, Format, Table
from tests.batch.yard import Yard


def decoded(reader: FileReader, record: Record) -> Any:
    """What it says, or why it cannot be read."""
    try:
        return reader.decode(record)
    except ValueError as error:
        return error


def read(file: File, plan: Plan) -> list[Any]:
    """All records, decoded; the segments are as they were."""
    assert problems(None, file, plan) == []  # type: ignore[arg-type]
    for each in plan.partitions:
        verify(file, each)
    reader = FileReader(file)
    found = [[decoded(reader, one) for one in reader.records(each)] for each in plan.partitions]
    assert [each.rows for each in plan.partitions] == [len(each) for each in found]
    return [one for each in found for one in each]


def read_bytes(folder: Path, content: bytes, parts: int = 2, **options: Any) -> list[Any]:
    """The records of a file of these bytes."""
    path = folder / "rows.csv"
    path.write_bytes(content)
    file = File(str(path), **options)
    return read(file, FlatFile(parts=parts).plan(None, file))


@pytest.mark.parametrize("parts", [1, 3])
def test_a_column_of_nulls_is_extracted_and_read(
    connection: Connection, tmp_path: Path, parts: int
) -> None:
    connection.execute(text("CREATE TEMP TABLE one (note text)"))
    connection.execute(text("INSERT INTO one VALUES (NULL), ('a'), (''), (NULL), ('b')"))
    planner = Extract(parts=parts, path=str(tmp_path / "one.csv"))

    plan = planner.plan(connection, Table("one", "note"))

    assert [row["note"] for row in read(planner.file, plan)] == ["", "a", "", "", "b"]
    assert plan.rows == 5


def test_a_job_does_all_rows_of_one_column_with_nulls(yard: Yard, tmp_path: Path) -> None:
    yard.sql("CREATE TABLE IF NOT EXISTS stock (note text)")
    yard.sql("INSERT INTO stock VALUES (NULL), ('a'), (NULL), ('b'), (NULL)")
    seen: list[str] = []

    def chunk(ctx: Any, rows: Sequence[Any]) -> None:
        seen.extend(row["note"] for row in rows)

    planner = Extract(parts=2, path=str(tmp_path / "one.csv"))
    step = yard.step(chunk, source=Table("stock", "note"), planner=planner, commit_every=2)
    view = yard.run(yard.job(step))

    assert view.batch.status is BatchStatus.COMPLETED
    assert sorted(seen) == ["", "", "", "a", "b"]
    assert view.tallies["step"].counts.read == 5


def test_text_is_extracted_as_utf_8_whatever_the_client_speaks(
    connection: Connection, tmp_path: Path
) -> None:
    connection.execute(text("CREATE TEMP TABLE one (id int, note text)"))
    connection.execute(text("INSERT INTO one VALUES (1, 'größer')"))
    connection.execute(text("SET LOCAL client_encoding = 'LATIN1'"))
    planner = Extract(parts=1, path=str(tmp_path / "one.csv"))

    plan = planner.plan(connection, Table("one"))

    assert read(planner.file, plan) == [{"id": "1", "note": "größer"}]


@pytest.mark.parametrize("header", [True, False])
def test_blank_lines_are_records_of_files_with_one_column_only(
    tmp_path: Path, header: bool
) -> None:
    narrow = read_bytes(tmp_path, b"id\n\n1\r\n\r\n2\n\n", header=header)
    wide = read_bytes(tmp_path, b"id,no\n\n1,2\r\n\r\n3,4\n\n", header=header)

    if header:
        assert [row["id"] for row in narrow] == ["", "1", "", "2", ""]
        assert [row["id"] for row in wide] == ["1", "3"]
    else:
        assert narrow == [["id"], [""], ["1"], [""], ["2"], [""]]
        assert wide == [["id", "no"], ["1", "2"], ["3", "4"]]


@pytest.mark.parametrize("before", [b"", b"\n", b"\r\n\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n"])
def test_the_first_line_that_is_not_blank_is_the_header(tmp_path: Path, before: bytes) -> None:
    for rest in (b"id,no\n1,2\n3,4\n", b'"id",no\n"1",2\n"3",4'):
        found = read_bytes(tmp_path, before + rest)
        assert found == [{"id": "1", "no": "2"}, {"id": "3", "no": "4"}]


def test_a_mark_of_the_byte_order_is_one_at_the_beginning_only(tmp_path: Path) -> None:
    rows = read_bytes(tmp_path, "\ufeffid\n\ufeffa\nb\n".encode())

    assert [row["id"] for row in rows] == ["\ufeffa", "b"]


def test_fields_may_be_long(tmp_path: Path) -> None:
    """The csv module's own limit is 131,072 characters, for all that a process reads."""
    limit = csv.field_size_limit()
    long = "x" * 131_073 + '"\n'
    quoted = long.replace('"', '""')

    rows = read_bytes(tmp_path, f'id,"n{quoted}"\n1,"{quoted}"\n2,b\n'.encode())

    assert rows == [{"id": "1", "n" + long: long}, {"id": "2", "n" + long: "b"}]
    assert csv.field_size_limit() == limit


REFUSED = {
    "CR only": b"id,no\r1,2\r3,4\r",
    "CR only, without a header": b"1,2\r3,4\r",
    "UTF-16": "id,no\n1,2\n".encode("utf-16"),
    "UTF-16 without a mark": "id,no\n1,2\n".encode("utf-16-le"),
    "UTF-32": "id,no\n1,2\n".encode("utf-32"),
    "Latin-1": "größe,no\n1,2\n".encode("latin-1"),
    "gzip": gzip.compress(b"id,no\n1,2\n"),
    "gzip of nothing": gzip.compress(b""),
    "bzip2": bz2.compress(b"id,no\n1,2\n"),
    "bzip2 of nothing": bz2.compress(b""),
    "xz": lzma.compress(b"id,no\n1,2\n"),
    "zip": b"PK\x03\x04\x14\x00\x08\x00rows.csv",
    "zstd": b"(\xb5/\xfd\x04Xid,no",
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("header", [True, False])
def test_what_is_no_text_of_lines_is_refused_at_the_plan(
    tmp_path: Path, kind: str, header: bool
) -> None:
    reason = "end with CR" if kind.startswith("CR") else "no text in UTF-8"

    with pytest.raises(PlanError, match=reason):
        read_bytes(tmp_path, REFUSED[kind], header=header)


def test_lines_of_json_that_are_compressed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no text in UTF-8"):
        read_bytes(tmp_path, gzip.compress(b'{"a": 1}\n'), format=Format.JSON_LINES)
