"""Runs of partitions, each time without one of their rules."""

from __future__ import annotations

from dev.torture.mutants.change import mutant

RUN = "tasks_app/batch/execution/partition_run.py"
ADVANCE = "tasks_app/pool/batch/partition_progress.py"
JOBS = "tests/batch/test_runs.py::test_"
CHUNKS = "tests/batch/test_chunks.py::test_"
RESTARTS = "tests/batch/test_restarts.py::test_"
RACES = "tests/batch/test_races.py::test_"
FENCES = "tests/pool/batch/test_repository.py::TestRuns::test_"

BATCHES = (
    mutant(
        "checkpoint in a transaction of its own",
        "Rows and checkpoint are one commit.",
        RUN,
        "self._task.commit_by(lambda connection: self._advance(connection, after, done))",
        "(self._task.commit(), self._advance(self._task.connection, after, done),"
        " self._task.commit())",
        f"{CHUNKS}a_checkpoint_that_cannot_be_written_takes_its_rows_back",
    ),
    mutant(
        "checkpoint before its rows",
        "Rows and checkpoint are one commit.",
        RUN,
        "            counts = self._rows.process(self._reader, rows, by_halves=self._by_halves)\n",
        """\
            place = self._reader.after(rows) if rows else self._after
            self._task.commit_by(lambda connection: self._advance(connection, place, RowCounts()))
            counts = self._rows.process(self._reader, rows, by_halves=self._by_halves)
""",
        f"{CHUNKS}the_chunks_before_the_one_that_fails_stay_and_are_not_read_again",
    ),
    mutant(
        "chunk that does not look at its fence",
        "Only the newest attempt says how far a partition is.",
        ADVANCE,
        "WHERE p.id = :task_id AND p.attempt = :attempt AND p.lease_token = :token\n      AND",
        "WHERE p.id = :task_id AND",
        f"{FENCES}an_attempt_that_was_given_back_writes_nothing",
    ),
    mutant(
        "partition started without the fence",
        "Only the newest attempt has the partition.",
        ADVANCE,
        "SELECT FROM {PENDING} p WHERE p.id = :task_id AND p.attempt = :attempt\n"
        "      AND p.lease_token = :token AND",
        "SELECT FROM {PENDING} p WHERE p.id = :task_id AND",
        f"{FENCES}an_attempt_that_was_given_back_writes_nothing",
    ),
    mutant(
        "fence that nobody holds until the commit",
        "From the look at the fence to the COMMIT nobody takes the task.",
        ADVANCE,
        "    FOR NO KEY UPDATE OF p\n",
        "",
        f"{RACES}no_lease_is_taken_between_the_last_look_and_the_commit",
    ),
    mutant(
        "partition that any task may start",
        "A restart gives a partition to another task, and no other may start it.",
        ADVANCE,
        "(t.batch_id IS NULL OR t.task_id = :task_id) AND",
        "",
        f"{FENCES}a_partition_is_only_started_by_its_own_task",
    ),
    mutant(
        "rows counted again with a chunk that is tried again",
        "A row is counted in the commit that it is done in, and in no other.",
        RUN,
        "            done = RowCounts(*map(add, self._done, counts))\n",
        "            self._done = done = RowCounts(*map(add, self._done, counts))\n",
        f"{CHUNKS}a_checkpoint_that_cannot_be_written_takes_its_rows_back",
    ),
    mutant(
        "rows counted with each chunk behind them",
        "A row is counted in the commit that it is done in, and in no other.",
        RUN,
        "self._done = done if self._step.at_end else RowCounts()",
        "self._done = done",
        f"{JOBS}each_row_is_done_once",
    ),
    mutant(
        "state of a chunk that failed",
        "What a chunk said in its state goes with its rows.",
        RUN,
        "        except BaseException:\n            self._ctx.state = state\n            raise\n"
        "        self._after",
        "        except BaseException:\n            raise\n        self._after",
        f"{CHUNKS}rows_that_fail_are_left_out_with_their_reasons",
    ),
    mutant(
        "restart that forgets the checkpoint",
        "A run goes on behind the last chunk that was committed.",
        RUN,
        'self._after: Any = checkpoint.get("after")',
        "self._after: Any = None",
        f"{RESTARTS}stop_ends_at_a_chunk_and_a_restart_goes_on_there",
    ),
    mutant(
        "run that does not hear of a stop",
        "A stop ends runs at their next chunk.",
        RUN,
        "if self._signal is not RunSignal.CONTINUE:",
        "if False:",
        f"{RESTARTS}stop_ends_at_a_chunk_and_a_restart_goes_on_there",
    ),
    mutant(
        "row left out and written, too",
        "Of a row that is left out nothing stands.",
        "tasks_app/batch/execution/chunk.py",
        "with self._ctx.session.begin_nested():",
        "if True:",
        f"{CHUNKS}rows_that_fail_are_left_out_with_their_reasons",
    ),
    mutant(
        "one row more than may be left out",
        "No more than skip_limit rows are left out.",
        "tasks_app/batch/execution/chunk.py",
        "if left_out > self._step.skip_limit:",
        "if left_out > self._step.skip_limit + 1:",
        f"{CHUNKS}partitions_together_leave_out_no_more_than_the_limit",
    ),
    mutant(
        "skip limit that two may pass at once",
        "The limit is that of the step, whichever partition leaves out rows.",
        "tasks_app/pool/batch/partition_progress.py",
        "step = :step FOR NO KEY UPDATE",
        "step = :step",
        f"{CHUNKS}who_counts_what_is_left_out_waits_for_others",
    ),
    mutant(
        "chunk that its handler rolled back",
        "What is counted stands.",
        "tasks_app/batch/execution/chunk.py",
        "if self._ctx.connection.get_transaction() is not within:",
        "if False:",
        f"{CHUNKS}a_handler_that_rolls_back_fails_the_run",
    ),
    mutant(
        "halving that loses a half",
        "Of a part that fails both halves are tried.",
        "tasks_app/batch/execution/chunk.py",
        "parts += [part[middle:], part[:middle]]",
        "parts += [part[:middle]]",
        "tests/batch/test_planners.py::test_all_rows_but_the_bad_ones_are_done_once_and_in_order",
    ),
    mutant(
        "taker that does not wait for others' rows",
        "Marked rows are done when none waits, also in nobody else's hands.",
        "tasks_app/batch/execution/chunk.py",
        "            return False\n        if self._marker is None:",
        "            return False\n        return True\n        if self._marker is None:",
        "tests/batch/test_sources.py::test_rows_that_others_have_in_hand_are_waited_for",
    ),
)
