"""What is told of a task: its log, its last change, its sub-status; each without one rule."""

from __future__ import annotations

from dev.torture.mutants.change import mutant

LOG = "tasks_app/pool/fragments/transition_log.py"
EDGES = "tests/pool/runs/test_every_transition.py::"
SAID = "tests/runtime/execution/test_transition_log.py::"

TRAIL = (
    mutant(
        "trail: claims",
        "Where all is logged, each claim has a line.",
        "tasks_app/pool/runs/claim.py",
        "which.value[LOG.has_successes]",
        "which.value[False]",
        f"{EDGES}test_every_edge_leaves_a_line",
    ),
    mutant(
        "trail: creations",
        "That a task was created is logged once.",
        LOG,
        "            LIMIT 1) IS NULL",
        "            LIMIT 1) IS NULL OR true",
        f"{EDGES}test_that_it_was_created_is_told_once",
    ),
    mutant(
        "trail: cancels",
        "Who cancels a waiting task leaves a line.",
        "tasks_app/pool/tasks/cancel.py",
        "    log_operator_action(connection, Event.CANCEL, pending, by, "
        "target=State.CANCELLED, now=now)\n",
        "",
        f"{EDGES}test_every_edge_leaves_a_line",
    ),
    mutant(
        "trail: off",
        "Where nothing is logged, no statement more is sent.",
        "tasks_app/pool/fragments/transition_log.py",
        "if not (LOG.has_successes and ids):",
        "if not ids:",
        f"{EDGES}test_off_sends_no_statement_more",
    ),
    mutant(
        "trail: last change",
        "A task that came back was changed then.",
        "tasks_app/pool/fragments/move_rows.py",
        "{UNPARKED}, changed_at = {NOW},",
        "{UNPARKED},",
        "tests/pool/tasks/test_copy.py::test_it_is_the_instant_of_each_move",
    ),
    mutant(
        "sub-status: pools",
        "What was said goes with the task through pools and retries.",
        "tasks_app/pool/runs/settle.py",
        "nullif(coalesce(f.said, p.sub_status), '') AS sub_status",
        "nullif(f.said, '') AS sub_status",
        f"{SAID}test_a_sub_status_stays_through_retries_pools_and_a_requeue",
    ),
    mutant(
        "waiting: release at a rate",
        "A release at a rate is early for nobody.",
        "tasks_app/pool/tasks/amend.py",
        "CASE WHEN place.taken THEN place.at WHEN {_HAS_NO_NEEDS} THEN p.held_due_at\n",
        "CASE WHEN {_HAS_NO_NEEDS} THEN place.at\n",
        "tests/pool/tasks/test_amend_waiting.py::"
        "test_a_release_at_a_rate_spreads_what_is_late_and_nothing_else",
    ),
)
