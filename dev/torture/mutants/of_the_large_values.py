"""What keeps a large value with its task, and nobody else's; each without one rule."""

from __future__ import annotations

from dev.torture.mutants.change import mutant

RUNS = "tests/runtime/large_values/test_runs.py::"
ENDS = "tests/runtime/large_values/test_runs.py::"
STORES = "tests/runtime/large_values/test_stores.py::"
SECRETS = "tests/runtime/large_values/test_stores.py::"
ROWS = "tasks_app/pool/tasks/large_values.py"

LARGE_VALUES = (
    mutant(
        "large values: running",
        "What a running task has written is not swept before its settle.",
        ROWS,
        "(p.state = '{State.RUNNING}' OR p.payload {_IS_THERE})",
        "(p.payload {_IS_THERE})",
        f"{ENDS}test_what_a_running_task_has_written_stays_until_it_has_ended",
    ),
    mutant(
        "large values: task",
        "A reference opens a value of its own task alone.",
        ROWS,
        "WHERE id = :id AND task_id = :task_id",
        "WHERE id = :id AND :task_id > 0",
        f"{RUNS}test_a_reference_opens_no_value_of_another_task",
    ),
    mutant(
        "large values: handed in",
        "Nobody is given a stored value by handing its reference in.",
        "tasks_app/domain/creation.py",
        "        store.check_no_reference(text)\n",
        "        assert text\n",
        f"{RUNS}test_a_reference_is_nobodys_payload",
    ),
    mutant(
        "large values: taken key",
        "A task that was not created leaves no value.",
        ROWS,
        "if isinstance(row.payload, LargePayload) and taken:",
        "if isinstance(row.payload, LargePayload):",
        f"{RUNS}test_a_taken_key_keeps_no_value",
    ),
    mutant(
        "large values: transaction",
        "No task is there, and may run, before its payload is.",
        ROWS,
        "    if commits_itself(connection):\n        raise TasksError(",
        "    if False:\n        raise TasksError(",
        f"{RUNS}test_every_kind_of_connection_keeps_it",
    ),
    mutant(
        "large values: day",
        "The values of a day's tasks go with the day.",
        "tasks_app/pool/retention.py",
        "        WHERE v.task_id = ANY(ARRAY(SELECT id FROM looked)) AND {_FREE})",
        "        WHERE false)",
        f"{ENDS}test_it_goes_with_the_partition_of_its_day",
    ),
    mutant(
        "large values: erase",
        "Nothing is left of an erased task in an object store.",
        "tasks_app/runtime/erasure.py",
        "        large_values().remove(objects)\n",
        "        assert objects\n",
        f"{STORES}test_an_erased_task_has_no_file",
    ),
    mutant(
        "large values: grace",
        "A file whose transaction is still open is not removed.",
        "tasks_app/runtime/leader/maintainer.py",
        "before = database_now(connection) - LARGE_VALUE_GRACE",
        "before = database_now(connection)",
        f"{STORES}test_a_file_stays_a_day_for_its_commit",
    ),
    mutant(
        "large values: a store that hangs",
        "Maintenance does not wait for an object store.",
        "tasks_app/runtime/leader/maintainer.py",
        "self._large.start_outside()",
        "self._large.run_outside()",
        "tests/runtime/large_values/test_runs.py::test_maintenance_ends_as_a_store_hangs",
    ),
    mutant(
        "large values: outage",
        "A store that does not answer is no failure of a task.",
        "tasks_app/runtime/execution/invocation.py",
        "if isinstance(error, LargeStoreError) or is_lost(error):",
        "if is_lost(error):",
        f"{STORES}test_a_task_whose_store_does_not_answer_is_given_back_uncharged",
    ),
    mutant(
        "large values: secret",
        "A handler that takes no payload has an encrypted result, too, if its payload is.",
        "tasks_app/runtime/execution/invocation.py",
        "if reference is not None and reference.encrypted:",
        "if reference is None:",
        f"{SECRETS}test_a_handler_without_payload_encrypts_its_result",
    ),
)
