"""Steps and instances of batch jobs, each time without one of their rules."""

from __future__ import annotations

from dev.torture.mutants.change import Change, mutant

PROGRESS = "tasks_app/batch/progress.py"
RUNS = "tasks_app/pool/batch/partition_runs.py"
JOBS = "tests/batch/test_runs.py::test_"
ABORTS = "tests/batch/test_aborts.py::test_"
REQUEUES = "tests/batch/test_aborts.py::test_"
RESTARTS = "tests/batch/test_restarts.py::test_"
RACES = "tests/batch/test_races.py::test_"

STEPS = (
    mutant(
        "fail_fast that lets the others go on",
        "With fail_fast the first failure ends the step.",
        PROGRESS,
        "fail_fast=step.on_abort.kind is AbortKind.FAIL_FAST and step.join.enough is None,\n",
        "fail_fast=False,\n",
        f"{ABORTS}fail_fast_calls_the_others_off",
    ),
    mutant(
        "any that does not call the others off",
        "The join calls off what waits, before anybody claims it.",
        PROGRESS,
        '            cancel_these(self._connection, tasks, by=Author(f"batch {self._id}"))\n',
        "",
        f"{ABORTS}what_waits_is_called_off_by_the_join_before_anybody_claims_it",
    ),
    mutant(
        "quorum rounded down",
        "A quorum is reached when the share is.",
        "tasks_app/domain/batch/policies.py",
        "math.ceil(self.share * total - 1e-9)",
        "math.floor(self.share * total)",
        "tests/domain/test_batch.py::test_what_follows_when_partitions_have_ended",
    ),
    mutant(
        "quorum as computers multiply",
        "A tenth of ten is one.",
        "tasks_app/domain/batch/policies.py",
        "math.ceil(self.share * total - 1e-9)",
        "math.ceil(self.share * total + 1e-9)",
        "tests/domain/test_batch.py::test_what_follows_when_partitions_have_ended",
    ),
    mutant(
        "one round too many",
        "retry_partition starts again as often as it says.",
        "tasks_app/domain/batch/policies.py",
        "rounds < on_abort.tries",
        "rounds <= on_abort.tries",
        f"{ABORTS}a_partition_is_tried_again_from_its_checkpoint",
    ),
    mutant(
        "compensation of what is complete",
        "Undone is what has failed, and nothing else.",
        PROGRESS,
        "parts = partition_runs.find(self._connection, self._id, step.name, Status.FAILED)\n"
        "                self._change(step, StepStatus.COMPENSATING)",
        "parts = partition_runs.find(self._connection, self._id, step.name, *Status)\n"
        "                self._change(step, StepStatus.COMPENSATING)",
        f"{ABORTS}compensate_undoes_what_was_committed",
        also=[
            Change(
                "tasks_app/batch/job.py",
                "if stored is None or stored.status is not Status.FAILED:",
                "if stored is None:",
            )
        ],
    ),
    mutant(
        "compensated partition that keeps its place",
        "What was undone is as if never started.",
        RUNS,
        "'{Status.COMPENSATED}', checkpoint = NULL, read_rows = 0,",
        "'{Status.COMPENSATED}', read_rows = 0,",
        f"{ABORTS}compensate_undoes_what_was_committed",
    ),
    mutant(
        "partition that ended without a word",
        "What partitions have failed is learned from the error pool.",
        RUNS,
        "CASE WHEN e.error IS NULL THEN :left ELSE '{Status.FAILED}' END",
        "CASE WHEN e.error IS NULL THEN :left ELSE :left END",
        f"{ABORTS}a_partition_that_kills_its_process_is_failed_by_the_join",
    ),
    mutant(
        "reduce that gets partitions in any order",
        "Results come by number.",
        RUNS,
        "ORDER BY v.partition_no LIMIT :most",
        "ORDER BY v.partition_no DESC LIMIT :most",
        f"{JOBS}reduce_gets_what_partitions_leave_by_number",
    ),
    mutant(
        "task of an earlier run that decides",
        "A task of a run that is over changes nothing.",
        "tasks_app/batch/job.py",
        'if batch is None or batch.run != payload["run"]:',
        "if batch is None:",
        f"{RESTARTS}a_join_of_an_earlier_run_changes_nothing",
    ),
    mutant(
        "task that nobody waits for",
        "What was decided stays decided, whatever is requeued.",
        "tasks_app/batch/job.py",
        "    if not waits:\n",
        "    if False:\n",
        f"{REQUEUES}an_instance_that_is_complete_stays_so",
        f"{REQUEUES}a_join_that_has_decided_does_not_fail_the_step_that_goes_on",
    ),
    mutant(
        "abandoned instance that goes on",
        "An abandoned instance never goes on.",
        "tasks_app/batch/job.py",
        "if batch.status is BatchStatus.ABANDONED:",
        "if False:",
        f"{REQUEUES}a_lost_instance_goes_on_by_its_plan_unless_abandoned",
    ),
    mutant(
        "instance that two restart at once",
        "Who restarts an instance holds its row.",
        "tasks_app/pool/batch/instances.py",
        '_one(connection, f"{_GET} FOR UPDATE", {"id": batch_id})',
        '_one(connection, _GET, {"id": batch_id})',
        f"{RACES}of_two_restarts_at_once_one_begins",
    ),
    mutant(
        "parameters that two start again at once",
        "Who starts an instance that is there holds its row.",
        "tasks_app/pool/batch/instances.py",
        "AND status <> 'ABANDONED' FOR UPDATE\n",
        "AND status <> 'ABANDONED'\n",
        f"{RACES}of_two_starts_of_a_failed_one_one_begins",
    ),
    mutant(
        "stop that does not wait for a chunk's commit",
        "Rows of partitions are locked before those of tasks.",
        RUNS,
        "AND p.task_id IS NOT NULL ORDER BY p.id FOR UPDATE\n",
        "AND p.task_id IS NOT NULL ORDER BY p.id\n",
        f"{RACES}a_stop_waits_for_the_last_chunk_and_finds_it_complete",
    ),
    mutant(
        "order of parameters that matters",
        "The same parameters are the same instance.",
        "tasks_app/domain/batch/records.py",
        "in sorted(parts.items())",
        "in parts.items()",
        "tests/domain/test_batch.py::test_the_order_of_parameters_does_not_matter",
    ),
)
