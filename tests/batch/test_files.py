"""Files as sources: their lines, their cuts, odd ones."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text

from tasks_app.batch.files import segments as reader_module
from tasks_app.batch.files.segments import (
    FileRow,
    SegmentReader,
    Unreadable,
    body_of,
    file_of,
    verify,
)
from tasks_app.batch.planners.flat_file import Extract, FlatFile
from tasks_app.batch.validate import problems, validate
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.check import WrongPlanError
from tasks_app.domain.partition.records import File, Format, Partition, PartitionKind, Plan, Table
from tasks_app.pool.batch import partitions
from tests.batch.yard import Yard

FIELD = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6
) | st.sampled_from(['"', '""', "\n", "\r\n", 'a "b"\n', ",", "", " "])
any_file = settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


def plan_of(file: File, parts: int) -> Plan:
    return FlatFile(parts=parts).plan(None, file)


def rows_of(file: File, each: Partition, after: int | None = None) -> list[Any]:
    return list(SegmentReader(file, each).read(None, after, 1_000_000))  # type: ignore[arg-type]


def read(file: File, plan: Plan) -> list[Any]:
    return [one.fields for each in plan.partitions for one in rows_of(file, each)]


@given(
    rows=st.lists(st.tuples(FIELD, FIELD), max_size=12),
    end=st.sampled_from(["\n", "\r\n"]),
    parts=st.integers(1, 8),
    last=st.booleans(),
    mark=st.booleans(),
)
@any_file
def test_every_record_of_a_csv_file_is_read_once(
    tmp_path: Path, rows: list[tuple[str, str]], end: str, parts: int, last: bool, mark: bool
) -> None:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("id", "wörds\n"), *rows])
    text = out.getvalue() if last or not rows else out.getvalue().removesuffix(end)
    path = tmp_path / "rows.csv"
    path.write_bytes((b"\xef\xbb\xbf" if mark else b"") + text.encode())
    file = File(str(path))
    plan = plan_of(file, parts)

    assert problems(None, file, plan) == []  # type: ignore[arg-type]
    assert read(file, plan) == [{"id": one, "wörds\n": other} for one, other in rows]
    assert [each.rows for each in plan.partitions] == [
        len(rows_of(file, each)) for each in plan.partitions
    ]
    for each in plan.partitions:
        verify(file, each)


@given(
    rows=st.lists(st.dictionaries(FIELD, FIELD | st.integers()), max_size=12),
    parts=st.integers(1, 8),
)
@any_file
def test_every_line_of_json_is_read_once(tmp_path: Path, rows: list, parts: int) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = File(str(path), Format.JSON_LINES)
    plan = plan_of(file, parts)
    assert problems(None, file, plan) == []  # type: ignore[arg-type]
    assert read(file, plan) == rows


@given(rows=st.lists(FIELD, min_size=1, max_size=9), parts=st.integers(1, 3))
@any_file
def test_reading_goes_on_behind_any_record(tmp_path: Path, rows: list[str], parts: int) -> None:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as out:
        csv.writer(out, quoting=csv.QUOTE_ALL).writerows([row] for row in rows)
    file = File(str(path), header=False)

    for each in plan_of(file, parts).partitions:
        found = rows_of(file, each)
        for place, row in enumerate(found, 1):
            assert rows_of(file, each, after=row.end) == found[place:]


def test_segments_are_about_as_large(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id\n" + "".join(f"{number:05}\n" for number in range(1000)))
    plan = plan_of(File(str(path)), 4)
    assert [each.rows for each in plan.partitions] == [250] * 4
    assert plan.rows == 1000
    by_rows = FlatFile(rows=100).plan(None, File(str(path)))
    assert len(by_rows.partitions) == 10


def test_a_record_longer_than_a_segment_is_not_divided(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('"' + "line\n" * 100 + '"\nshort\n')
    plan = plan_of(File(str(path), header=False), 5)
    assert [each.rows for each in plan.partitions] == [1, 1]


def test_a_file_without_records_has_no_segments_and_that_is_right(tmp_path: Path) -> None:
    for name, content in (("empty", ""), ("header", "id,name\n"), ("unended", "id,name")):
        path = tmp_path / name
        path.write_text(content)
        plan = plan_of(File(str(path)), 3)
        assert plan.partitions == ()
        assert problems(None, File(str(path)), plan) == []  # type: ignore[arg-type]


def test_a_quote_that_is_never_closed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('id\n1\n"2\n3\n')
    with pytest.raises(PlanError, match="a quote is opened and never closed"):
        plan_of(File(str(path)), 2)


def test_a_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id\n1\n2\n3\n4\n")
    file = File(str(path))
    first, second = plan_of(file, 2).partitions
    path.write_text("id\n1\n2\n3\n5\n")

    verify(file, first)
    with pytest.raises(PlanError, match=r"partition 2 .* was changed"):
        verify(file, second)
    path.write_text("id\n")
    with pytest.raises(PlanError, match="was changed"):
        verify(file, first)


def test_a_file_that_grew_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id\n1\n2\n")
    plan = plan_of(File(str(path)), 2)
    with path.open("a") as out:
        out.write("3\n")
    with pytest.raises(WrongPlanError, match="The greatest key is 8"):
        validate(None, File(str(path)), plan)  # type: ignore[arg-type]


def test_a_record_that_cannot_be_read_is_told_when_it_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"id,name\n1,a\n2\n3,\xff\n4,d\n")
    file = File(str(path))
    (segment,) = plan_of(file, 1).partitions
    good, short, wrong, last = rows_of(file, segment)
    assert good.fields == {"id": "1", "name": "a"}
    assert last.fields == {"id": "4", "name": "d"}
    assert "1 fields" in str(short.error)
    assert "can't decode" in str(wrong.error)


def test_a_table_is_extracted_and_split(connection: Connection, tmp_path: Path) -> None:
    connection.execute(text("CREATE TEMP TABLE notes (id bigint, note text)"))
    notes = {1: 'a "quoted"\nnote', 2: "100%", 3: "", 4: "ü:name", 5: "\\N"}
    connection.execute(
        text("INSERT INTO notes VALUES (:id, :note)"),
        [{"id": number, "note": note} for number, note in notes.items()],
    )
    planner = Extract(parts=3, path=str(tmp_path / "notes.csv"))

    plan = planner.plan(connection, Table("notes"))

    assert problems(connection, planner.file, plan) == []
    assert problems(connection, Table("notes"), plan) == []
    assert file_of(Table("notes"), plan.partitions[0]) == planner.file
    assert {int(row["id"]): row["note"] for row in read(planner.file, plan)} == notes
    manifest = json.loads((tmp_path / "notes.csv.manifest.json").read_text())
    assert manifest["records"] == 5
    assert [each["end_byte"] for each in manifest["segments"]][-1] == body_of(planner.file)[1]
    assert {each.kind for each in plan.partitions} == {PartitionKind.SEGMENT}
    partitions.insert(connection, "p#1", plan, batch_id=1)
    assert (
        tuple(each.partition for each in partitions.find_by_batch(connection, 1)) == plan.partitions
    )


EXAMPLES = int(os.environ.get("STATEFUL_EXAMPLES", "0"))
any_file_of_any_file = settings(
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
FIELD_OF_ANY_FILE = st.text('aä\U0001f40d", \t\n\r\x0b\u2028\ufeff', max_size=4) | st.sampled_from(
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
        row = draw(st.lists(FIELD_OF_ANY_FILE if quoted else PLAIN, min_size=width, max_size=width))
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


@pytest.mark.test_all
@pytest.mark.timeout(0)
@given(data=st.data())
@any_file_of_any_file
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
    assert sum(len(rows_of(file, each)) for each in plan.partitions) == len(found)


@pytest.mark.test_all
@given(
    rows=st.lists(
        st.dictionaries(PLAIN, FIELD_OF_ANY_FILE | st.integers() | st.none()), max_size=5
    ),
    end=st.sampled_from(["\n", "\r\n", "\n\n"]),
    mark=st.booleans(),
    data=st.data(),
)
@any_file_of_any_file
def test_every_line_of_json_is_read_once_in_any_file(
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


def decoded(row: FileRow | Unreadable) -> Any:
    """What it says, or why it cannot be read."""
    return row.error if isinstance(row, Unreadable) else row.fields


def read_of_odd_files(file: File, plan: Plan) -> list[Any]:
    """All records, decoded; the segments are as they were."""
    assert problems(None, file, plan) == []  # type: ignore[arg-type]
    for each in plan.partitions:
        verify(file, each)
    found = [[decoded(one) for one in rows_of(file, each)] for each in plan.partitions]
    assert [each.rows for each in plan.partitions] == [len(each) for each in found]
    return [one for each in found for one in each]


def read_bytes(folder: Path, content: bytes, parts: int = 2, **options: Any) -> list[Any]:
    """The records of a file of these bytes."""
    path = folder / "rows.csv"
    path.write_bytes(content)
    file = File(str(path), **options)
    return read_of_odd_files(file, FlatFile(parts=parts).plan(None, file))


@pytest.mark.parametrize("parts", [1, 3])
def test_a_column_of_nulls_is_extracted(connection: Connection, tmp_path: Path, parts: int) -> None:
    connection.execute(text("CREATE TEMP TABLE one (note text)"))
    connection.execute(text("INSERT INTO one VALUES (NULL), ('a'), (''), (NULL), ('b')"))
    planner = Extract(parts=parts, path=str(tmp_path / "one.csv"))
    plan = planner.plan(connection, Table("one", "note"))
    assert [row["note"] for row in read_of_odd_files(planner.file, plan)] == ["", "a", "", "", "b"]
    assert plan.rows == 5


def test_a_job_does_all_rows_of_one_column_with_nulls(yard: Yard, tmp_path: Path) -> None:
    yard.sql("CREATE TABLE IF NOT EXISTS stock (note text)")
    yard.sql("INSERT INTO stock VALUES (NULL), ('a'), (NULL), ('b'), (NULL)")
    seen: list[str] = []

    def chunk(ctx: Any, rows: Sequence[Any]) -> None:
        seen.extend(row["note"] for row in rows)

    planner = Extract(parts=2, path=str(tmp_path / "one.csv"))
    step = yard.step(chunk, source=Table("stock", "note"), planner=planner, commit_every=2)
    view = yard.completes(step)
    assert sorted(seen) == ["", "", "", "a", "b"]
    assert view.tallies["step"].counts.read == 5


def test_text_is_extracted_as_utf_8_for_any_client(connection: Connection, tmp_path: Path) -> None:
    connection.execute(text("CREATE TEMP TABLE one (id int, note text)"))
    connection.execute(text("INSERT INTO one VALUES (1, 'größer')"))
    connection.execute(text("SET LOCAL client_encoding = 'LATIN1'"))
    planner = Extract(parts=1, path=str(tmp_path / "one.csv"))
    plan = planner.plan(connection, Table("one"))
    assert read_of_odd_files(planner.file, plan) == [{"id": "1", "note": "größer"}]


@pytest.mark.parametrize("header", [True, False])
def test_only_in_files_of_one_column_are_blank_lines_records(tmp_path: Path, header: bool) -> None:
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
def test_the_plan_refuses_what_is_no_text_of_lines(tmp_path: Path, kind: str, header: bool) -> None:
    reason = "end with CR" if kind.startswith("CR") else "not text in UTF-8"
    with pytest.raises(PlanError, match=reason):
        read_bytes(tmp_path, REFUSED[kind], header=header)


def test_lines_of_json_that_are_compressed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="not text in UTF-8"):
        read_bytes(tmp_path, gzip.compress(b'{"a": 1}\n'), format=Format.JSON_LINES)


QUOTES = {
    "inch marks in two lines": b'id,no\n1,5" pipe\n2,b\n3,6" pipe\n4,d\n',
    "inch marks in lines that follow": b'id,no\n1,5" pipe\n2,6" pipe\n',
    "opened in one field, closed in another": b'id,no\n1,"a\n2,b\n3,"c"\n',
    "as many fields as the header, of one more": b'id,no\n1,"a\n2,b","c"\n',
    "in the last line": b'id,no\n1,a\n2,"b',
    "no header": b'1,5" pipe\n2,b\n3,6" pipe\n',
}


@pytest.mark.parametrize("what", QUOTES)
def test_a_stray_quote_that_hides_lines_is_refused_at_the_plan(tmp_path: Path, what: str) -> None:
    """One record that is left out would be many lines."""
    with pytest.raises(PlanError, match=r"a quote is opened and never closed"):
        read_bytes(tmp_path, QUOTES[what], header=what != "no header")


def test_a_quote_within_its_line_costs_that_line_at_most(tmp_path: Path) -> None:
    found = read_bytes(tmp_path, b'id,no\n1,5" x 6" pipe\n2,"a"b"\n3,c\n'.replace(b'b"', b"b"))
    assert found[0] == {"id": "1", "no": '5" x 6" pipe'}
    assert isinstance(found[1], csv.Error)
    assert found[2] == {"id": "3", "no": "c"}


@pytest.mark.parametrize("header", [b"id,no,no", b"id,,no", b'id," ",no', b",", b'"a","a"'])
def test_a_header_with_a_column_twice_or_unnamed_is_refused(tmp_path: Path, header: bytes) -> None:
    row = b"1,2,3"[: 2 * header.count(b",") + 1]
    with pytest.raises(PlanError, match="has a blank name, or one twice"):
        read_bytes(tmp_path, header + b"\n" + row + b"\n")
    columns = [word.strip('"') for word in header.decode().split(",")]
    found = read_bytes(tmp_path, header + b"\n" + row + b"\n", header=False)
    assert found == [columns, row.decode().split(",")]


def test_numbers_of_json_are_exact_and_keys_come_once(tmp_path: Path) -> None:
    good = ["12345678901234567.89", "0.1000000000000000000001", "1e400", "-0.0", "123456789" * 9]
    bad = ["NaN", "-Infinity", "Infinity", '1, "n": 2', '{"a": 1, "a": 1}', "1e9999999999999999999"]
    lines = "".join(f'{{"n": {word}}}\n' for word in good + bad)
    found = read_bytes(tmp_path, lines.encode(), format=Format.JSON_LINES)
    assert [str(row["n"]).lower().replace("e+", "e") for row in found[: len(good)]] == good
    assert [type(each).__name__ for each in found[len(good) :]] == ["ValueError"] * 5 + [
        "InvalidOperation"
    ]


def replaced(path: Path, content: bytes) -> None:
    """As an upload does it."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


def overwritten(path: Path, content: bytes) -> None:
    """In place, as a copy does it; whoever has the file open reads the new one, too."""
    path.write_bytes(content)


CHANGES = {
    "becomes shorter": lambda path, old: overwritten(path, old[:-20]),
    "becomes longer": lambda path, old: overwritten(path, old + b"99,2\n"),
    "is replaced": lambda path, old: replaced(path, old.replace(b",1\n", b",2\n")),
    "is overwritten": lambda path, old: overwritten(path, old.replace(b",1\n", b",2\n")),
    "exchanges two columns": lambda path, old: replaced(path, old.replace(b"id,no", b"no,id")),
    "is touched": lambda path, old: (overwritten(path, old), os.utime(path, (1, 1))),
    "is replaced by itself": replaced,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_read_is_not_mixed(tmp_path: Path, change: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"id,no\n" + b"".join(b"%d,1\n" % i for i in range(10, 60)))
    file = File(str(path))
    (partition,) = FlatFile(parts=1).plan(None, file).partitions
    reader = SegmentReader(file, partition)
    connection: Any = None

    first = reader.read(connection, None, 10)
    CHANGES[change](path, path.read_bytes())

    if change in {"becomes longer", "is touched", "is replaced by itself"}:
        rest = reader.read(connection, reader.after(first), 100)
        expected = [{"id": str(i), "no": "1"} for i in range(10, 60)]
        assert [row.fields for row in (*first, *rest)] == expected
        assert reader.is_last(connection, rest, 100)
    else:
        with pytest.raises(PlanError, match="was changed since"):
            reader.read(connection, reader.after(first), 100)


def test_a_file_changed_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"id,no\n1,1\n2,1\n")
    file = File(str(path))
    (partition,) = FlatFile(parts=1).plan(None, file).partitions
    compare = reader_module.verify
    connection: Any = None

    def then_replaced(file: File, partition: Partition) -> None:
        compare(file, partition)
        replaced(path, b"id,no\n1,2\n2,2\n")

    monkeypatch.setattr(reader_module, "verify", then_replaced)
    with pytest.raises(PlanError, match="was changed while it was read"):
        SegmentReader(file, partition).read(connection, None, 10)
