"""Partitions: who owns which rows, and how they are read, each time without one of their rules."""

from __future__ import annotations

from dev.torture.mutants.change import mutant

SPANS = "tasks_app/domain/partition/check.py"
CHECK = "tasks_app/domain/partition/check.py"
PREDICATE = "tasks_app/pool/batch/sources/predicate.py"
DIVIDE = "tasks_app/pool/batch/partitions.py"
JUDGED = "tests/domain/test_partition.py::test_"
OWNED = "tests/batch/test_sources.py::test_each_row_once_whatever_splits_it"
ONCE = "tests/batch/test_runs.py::test_each_row_is_done_once"
FILES = "tests/batch/test_files.py::test_"
REPLAN = "tests/batch/test_replan.py::test_"

PARTITIONS = (
    mutant(
        "page that begins with the last row of the one before",
        "A page is what lies behind the last key.",
        "tasks_app/pool/batch/sources/pages.py",
        'at > self._place_named("after")',
        'at >= self._place_named("after")',
        ONCE,
    ),
    mutant(
        "rows of equal keys passed over",
        "Rows of equal keys are told apart by a unique column.",
        "tasks_app/pool/batch/sources/pages.py",
        "        for name in unique\n",
        "        for name in ([] if order else unique)\n",
        f"{OWNED}[todo-Even(parts=3, rows=None, size=None, over1]",
    ),
    mutant(
        "rows that a page's end leaves out",
        "What orders rows is unique, or nothing is read by it.",
        "tasks_app/pool/batch/sources/pages.py",
        "        self._check_end(self._places[size - 1 :])\n",
        "",
        "tests/batch/test_sources.py::test_rows_that_nothing_tells_apart_are_refused_before_one_is_left_out",
    ),
    mutant(
        "checksum that only a first run compares",
        "A place in a file is one in the file as it was.",
        "tasks_app/batch/files/segments.py",
        "if version != self._verified:",
        "if after is None and version != self._verified:",
        "tests/batch/test_sources.py::test_a_file_that_was_changed_between_two_runs_is_not_read_on",
    ),
    mutant(
        "range that has its end, too",
        "Ranges are half-open.",
        PREDICATE,
        "key < bound(span.high, key_type)",
        "key <= bound(span.high, key_type)",
        ONCE,
    ),
    mutant(
        "range without its beginning",
        "Ranges are half-open.",
        PREDICATE,
        "key >= bound(span.low, key_type)",
        "key > bound(span.low, key_type)",
        ONCE,
    ),
    mutant(
        "NULL owned by all",
        "Rows without a key have exactly one owner.",
        PREDICATE,
        "return sa.or_(owned, key.is_(None)) if partition.owns_null else owned",
        "return sa.or_(owned, key.is_(None))",
        OWNED,
    ),
    mutant(
        "NULL owned by nobody",
        "Rows without a key have exactly one owner.",
        PREDICATE,
        "return sa.or_(owned, key.is_(None)) if partition.owns_null else owned",
        "return owned",
        OWNED,
    ),
    mutant(
        "hash below zero",
        "Each key has a bucket from 0 on.",
        PREDICATE,
        "sa.func.abs(_hash(key, key_type) % sa.literal(modulus, sa.BigInteger))",
        "_hash(key, key_type) % sa.literal(modulus, sa.BigInteger)",
        OWNED,
    ),
    mutant(
        "gap that nobody sees",
        "What lies between two ranges is somebody's.",
        SPANS,
        "elif before.high != span.low:",
        "elif False:",
        f"{JUDGED}a_range_within_another_hides_no_gap",
    ),
    mutant(
        "gap behind a range within another",
        "A range is compared with the one that reaches furthest.",
        SPANS,
        "if furthest is None or _reaches_further(span, furthest[1]):",
        "if True:",
        f"{JUDGED}a_range_within_another_hides_no_gap",
    ),
    mutant(
        "least key of nobody",
        "The first range has the least key.",
        SPANS,
        "extent.below or _less(least, span.low)",
        "extent.below",
        "tests/batch/test_replan.py::test_ranges_in_code",
    ),
    mutant(
        "greatest key of nobody",
        "The last range has the greatest key, which is not its end.",
        SPANS,
        "extent.above or _less(span.high, most) or span.high == most",
        "extent.above or _less(span.high, most)",
        "tests/batch/test_replan.py::test_ranges_in_code",
    ),
    mutant(
        "overlap that nobody sees",
        "No key is in two ranges.",
        SPANS,
        "if before.overlaps(span):",
        "if False:",
        f"{JUDGED}one_problem",
    ),
    mutant(
        "plan that forgets NULL",
        "Where there are rows without a key somebody owns them.",
        CHECK,
        "elif extent.nulls and not owners:",
        "elif False:",
        f"{JUDGED}rows_without_a_key_have_one_owner",
    ),
    mutant(
        "values of nobody",
        "Each value is in a list.",
        CHECK,
        "if unowned and facts.values is not None:",
        "if False:",
        f"{JUDGED}values_that_nobody_or_two_own",
    ),
    mutant(
        "plan that is not judged",
        "A wrong plan starts nothing.",
        "tasks_app/batch/validate.py",
        "    if found:\n",
        "    if False:\n",
        "tests/batch/test_replan.py::test_ranges_in_code",
    ),
    mutant(
        "segment that ends a byte early",
        "A segment ends behind the end of a line.",
        "tasks_app/batch/files/segments.py",
        "Range(low, at))",
        "Range(low, at - 1))",
        f"{FILES}every_record_of_a_csv_file_is_read_once",
    ),
    mutant(
        "border within a quoted field",
        "A line's end between quotes is none.",
        "tasks_app/batch/files/records.py",
        "if quotes % 2 == 0:",
        "if True:",
        "tests/batch/test_files.py::test_a_stray_quote_that_hides_lines_is_refused_at_the_plan"
        "[inch marks in two lines]",
    ),
    mutant(
        "last record of a segment",
        "A record that ends where the segment does is its own.",
        "tasks_app/batch/files/segments.py",
        "if record.end > high:",
        "if record.end >= high:",
        f"{FILES}every_record_of_a_csv_file_is_read_once",
    ),
    mutant(
        "checksum that nobody compares",
        "A segment that was changed is not read.",
        "tasks_app/batch/files/segments.py",
        "if version != self._verified:",
        "if False:",
        "tests/batch/test_sources.py::test_a_file_that_was_changed_since_it_was_split_is_not_read",
    ),
    mutant(
        "replan of what has started",
        "What has started keeps its range.",
        DIVIDE,
        "t.status = '{Status.PLANNED}'\n          AND t.checkpoint -> 'after' IS NULL",
        "true",
        f"{REPLAN}a_partition_started_meanwhile_is_left_alone",
    ),
    mutant(
        "replan that does not wait for a start",
        "Who divides a partition holds its row, and looks at it again.",
        DIVIDE,
        "        ORDER BY t.id FOR UPDATE\n",
        "        ORDER BY t.id\n",
        f"{REPLAN}a_partition_started_meanwhile_is_left_alone",
    ),
)
