"""Tasks in SQL, each without one rule."""

from __future__ import annotations

from dev.torture.mutants.change import mutant

SCANNER = "tasks_app/domain/handlers/spec.py"
HANDLER = "tasks_app/runtime/handlers/sql_handler.py"
PARSED = "tests/domain/test_handlers.py::"
RUN = "tests/runtime/handlers/test_sql_handler.py::"

SQL_TASKS = (
    mutant(
        "sql task: beside it",
        "A value is sent beside the statement, and is never a part of it.",
        HANDLER,
        "exec_driver_sql(statement.text, values)",
        "exec_driver_sql(statement.text % {k: f\"'{v}'\" for k, v in values.items()}, {})",
        f"{RUN}TestValues::test_a_value_is_never_part_of_the_statement",
    ),
    mutant(
        "sql task: one statement",
        "A second statement is refused when it is declared.",
        SCANNER,
        "                is_over = True",
        "                pass",
        f"{PARSED}test_what_no_task_could_carry_out_is_refused",
    ),
    mutant(
        "sql task: its keys",
        "The payload has the parameters of the statement and no others.",
        HANDLER,
        'ConfigDict(extra="forbid")',
        "ConfigDict()",
        f"{RUN}TestValues::test_the_payload_has_just_the_parameters",
    ),
    mutant(
        "sql task: no signal",
        "A slow statement is ended by the server, and its session lives on.",
        HANDLER,
        "        keeps_timeout=True,\n",
        "",
        f"{RUN}TestTimeout::test_a_slow_one_ends_by_statement_timeout",
    ),
    mutant(
        "sql task: its own COMMIT",
        "A procedure that commits by itself is not tried again.",
        HANDLER,
        "            raise Fail(ENDS_TRANSACTION) from error",
        "            raise",
        f"{RUN}TestOutcome::test_a_procedure_that_ends_the_transaction_fails_at_once",
    ),
)
