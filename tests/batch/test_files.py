"""Files: whatever stands in their records, each is in one segment, and whole."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text

from tasks_app.batch.files.segments import FileReader, body_of, file_of, verify
from tasks_app.batch.planners.flat_file import Extract, FlatFile
from tasks_app.batch.validate import problems, validate
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.check import WrongPlanError
from tasks_app.domain.partition.records import File, Format, PartitionKind, Plan, Table
from tasks_app.pool.batch import partitions

FIELD = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6
) | st.sampled_from(['"', '""', "\n", "\r\n", 'a "b"\n', ",", "", " "])
any_file = settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


def plan_of(file: File, parts: int) -> Plan:
    return FlatFile(parts=parts).plan(None, file)


def read(file: File, plan: Plan) -> list[Any]:
    reader = FileReader(file)
    return [reader.decode(one) for each in plan.partitions for one in reader.records(each)]


@given(
    rows=st.lists(st.tuples(FIELD, FIELD), max_size=12),
    end=st.sampled_from(["\n", "\r\n"]),
    parts=st.integers(1, 8),
    last=st.booleans(),
    mark=st.booleans(),
)
@any_file
def test_every_record_of_a_csv_file_is_read_once(
    tmp_path: Path,
    rows: list[tuple[str, str]],
    end: str,
    parts: int,
    last: bool,
    mark: bool,
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
        len(list(FileReader(file).records(each))) for each in plan.partitions
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
    reader = FileReader(file)

    for each in plan_of(file, parts).partitions:
        found = list(reader.records(each))
        for place, record in enumerate(found, 1):
            assert list(reader.records(each, after=record.end)) == found[place:]


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
    reader = FileReader(File(str(path)))
    (segment,) = plan_of(reader.file, 1).partitions

    good, short, wrong, last = reader.records(segment)

    assert reader.decode(good) == {"id": "1", "name": "a"}
    assert reader.decode(last) == {"id": "4", "name": "d"}
    for bad in (short, wrong):
        with pytest.raises(ValueError, match=r"1 fields|can't decode"):
            reader.decode(bad)


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
