"""Keys and files as people have them: every row once, each time without one of the rules."""

from __future__ import annotations

from dev.torture.mutants.change import mutant

PAGES = "tasks_app/pool/batch/sources/pages.py"
WRITTEN = "tasks_app/pool/batch/sources/predicate.py"
ODD = "tests/batch/test_odd_keys.py::test_each_row_is_done_once"
FEEDING = "tests/batch/test_chunks.py::test_"
DEFERRED = "tests/batch/test_runs.py::test_"
FILES = "tests/batch/test_files.py::test_"
LOOPS = "tests/runtime/handlers/test_chunks.py::test_"
ONCE = "tests/batch/test_restarts.py::test_all_rows_are_done"

KEYS = (
    mutant(
        "place that is not of what orders the rows",
        "The place of a page is written from the very expression that orders its rows.",
        WRITTEN,
        "func.trim_scale(key)",
        "func.ceil(key)",
        f"{ODD}[1-numeric of 40 digits behind the point]",
        ONCE,
    ),
    mutant(
        "instants written in the session's zone",
        "A key is written alike whatever the session's settings are.",
        WRITTEN,
        "return _iso(sa.func.timezone(_UTC, key))",
        "return _iso(sa.func.timezone(sa.func.current_setting('TimeZone'), key))",
        "tests/batch/test_odd_keys.py::test_a_list_has_both_instants_that_a_clock_shows_as_one",
    ),
    mutant(
        "numbers rounded as Python counts",
        "A key has all its digits.",
        "tasks_app/domain/partition/keys.py",
        '    words = format(key, "f")\n',
        '    words = format(key.normalize(), "f")\n',
        "tests/domain/test_partition.py::test_a_key_comes_back",
    ),
    mutant(
        "two instants that a clock shows as one",
        "Instants are compared as instants.",
        "tasks_app/domain/partition/keys.py",
        "        return key.astimezone(UTC)\n",
        "        return key\n",
        "tests/batch/test_odd_keys.py::test_a_list_has_both_instants_that_a_clock_shows_as_one",
    ),
    mutant(
        "days that Python does not know",
        "What Python cannot hold is given as text.",
        "tasks_app/pool/batch/sources/predicate.py",
        "        rows = _load_again(cursor)\n",
        "        raise\n",
        f"{ODD}[1-days beyond all bounds]",
    ),
    mutant(
        "unique column that may be null",
        "What rows are read by is never null.",
        PAGES,
        "if may_be_null and has_nulls(connection, other):",
        "if False:",
        "tests/batch/test_sources.py::test_rows_without_what_they_are_read_by_are_refused_at_the_plan",
    ),
    mutant(
        "partition without an end",
        "A chunk that inserts into its own source is not given its own rows for ever.",
        PAGES,
        'rows.where(own, at <= self._place_named("until"))',
        "rows.where(own)",
        f"{FEEDING}rows_behind_its_end_are_for_a_new_instance",
    ),
    mutant(
        "half of the rest without an end",
        "Who is given half of the rest ends where the giver does.",
        "tasks_app/batch/execution/partition_run.py",
        "        partitions.set_range_end(connection, list(made.values()), until)\n",
        "",
        f"{FEEDING}who_is_given_half_of_the_rest_ends_there_too",
    ),
    mutant(
        "list of the handler's that counts",
        "What a handler does with its list changes nothing.",
        "tasks_app/batch/execution/chunk.py",
        "self._step.chunk(self._ctx, list(rows))",
        "self._step.chunk(self._ctx, rows)",
        f"{FEEDING}a_handler_may_do_with_its_list_what_it_likes",
    ),
    mutant(
        "deferred triggers that wait for the COMMIT",
        "What a COMMIT would refuse is refused where the chunk can be tried again.",
        "tasks_app/batch/execution/partition_run.py",
        "                partition_progress.check_deferred(self._task.connection)\n",
        "",
        f"{DEFERRED}rows_no_commit_takes_are_left_out",
    ),
    mutant(
        "constraints that wait for the COMMIT",
        "What a COMMIT would refuse is refused where the row can be found.",
        "tasks_app/batch/execution/chunk.py",
        "                    partition_progress.try_deferred(self._ctx.connection)\n",
        "",
        f"{DEFERRED}rows_no_commit_takes_are_left_out",
    ),
    mutant(
        "constraints that are not deferred again",
        "Rows may be written before what they hang on, as long as the chunk writes both.",
        "tasks_app/pool/batch/partition_progress.py",
        "        savepoint.rollback()\n",
        "        savepoint.commit()\n",
        f"{DEFERRED}rows_may_be_written_before_what_they_hang_on",
    ),
    mutant(
        "float as a key",
        "A key that is not written as it is compared is refused.",
        "tasks_app/domain/partition/keys.py",
        '    "str": (str, str, str),\n',
        '    "str": (str, str, str),\n    "float": (float, float, float),\n',
        f"{LOOPS}keys_that_are_floats_are_refused_at_once",
    ),
    mutant(
        "key cast to what is declared",
        "Keys are compared in their column's type.",
        "tasks_app/pool/tasks/paging.py",
        "type_=_AsIs(c.type)",
        "type_=c.type",
        f"{LOOPS}keys_are_compared_in_their_columns_type",
    ),
    mutant(
        "two instances of one number",
        "1 and 1.0 are one parameter.",
        "tasks_app/domain/batch/records.py",
        "return str(_ALL_DIGITS.normalize(exact) or 0)",
        "return repr(value)",
        "tests/domain/test_batch.py::test_a_number_is_one_however_it_is_written",
    ),
    mutant(
        "two instances of one instant",
        "Equal parameters are one instance.",
        "tasks_app/domain/batch/records.py",
        "value.astimezone(UTC).isoformat()",
        "value.isoformat()",
        "tests/domain/test_batch.py::test_equal_parameters_of_each_kind_are_one_instance",
    ),
    mutant(
        "column that changes its type",
        "What a page reads has the types that its run began with.",
        PAGES,
        "if old.type_code != new.type_code:",
        "if False:",
        "tests/batch/test_sources.py::test_columns_that_move_between_two_chunks_keep_their_names",
    ),
    mutant(
        "stray quote that hides lines",
        "A record that is left out is one line.",
        "tasks_app/batch/files/segments.py",
        "                _check_quotes(file, head, record)\n",
        "",
        "tests/batch/test_files.py::test_a_stray_quote_that_hides_lines_is_refused_at_the_plan",
    ),
    mutant(
        "time that was shown on a day off",
        "The time of the day is the one that the expression names.",
        "tasks_app/domain/schedules/days_off.py",
        "if isinstance(self.timing, Cron):",
        "if False:",
        "tests/domain/test_days_off.py::"
        "test_a_time_that_was_skipped_on_a_day_off_is_kept_on_the_next_working_day",
    ),
    mutant(
        "blank line of one column",
        "A blank line is NULL where a record is one field.",
        "tasks_app/batch/files/segments.py",
        "if self._head.is_narrow or not record.is_blank:",
        "if not record.is_blank:",
        f"{FILES}a_column_of_nulls_is_extracted",
    ),
    mutant(
        "lines that end with CR alone",
        "A file that is read as one line is refused.",
        "tasks_app/batch/files/records.py",
        'if file.format is Format.CSV and b"\\r" in',
        'if False and b"\\r" in',
        f"{FILES}the_plan_refuses_what_is_no_text_of_lines",
    ),
    mutant(
        "files that are packed",
        "What is no text is refused at the plan.",
        "tasks_app/batch/files/records.py",
        '    if "\\0" in text or raw.startswith(_BZIP2):\n',
        "    if False:\n",
        f"{FILES}the_plan_refuses_what_is_no_text_of_lines",
    ),
    mutant(
        "header that is blank",
        "The first line that is not blank is the header.",
        "tasks_app/batch/files/records.py",
        "(each for each in records if not each.is_blank)",
        "(each for each in records)",
        f"{FILES}the_first_line_that_is_not_blank_is_the_header",
    ),
)
