"""Logical locks, each time without one of their rules."""

from __future__ import annotations

from dev.torture.mutants.change import mutant

ACQUIRE = "tasks_app/pool/locks/acquire.py"
HOLD = "tasks_app/pool/locks/holders.py"
VERBS = "tests/pool/test_locks.py::"
RACES = "tests/pool/test_races_of_locks.py::test_"
WAKE_UPS = "tests/runtime/locks/test_wake_ups.py::test_"
HANDLERS = "tests/runtime/locks/test_locks.py::TestHandlers::test_"

DECLARED = "tests/pool/flow_control/test_declared_locks.py::test_"

LOCKS = (
    mutant(
        "a task claimed without its locks",
        "A plain claim takes no task that declares locks.",
        "tasks_app/pool/tables.py",
        " AND p.locks IS NULL",
        "",
        f"{DECLARED}a_plain_claim_takes_none_that_declares_locks",
    ),
    mutant(
        "a task claimed before its handler's locks have names",
        "A plain claim takes no task of a handler that declares locks.",
        "tasks_app/pool/runs/claim.py",
        "if all_names or n not in claimer.locking",
        "if True",
        f"{DECLARED}a_plain_claim_takes_none_whose_handler_declares_locks",
    ),
    mutant(
        "a task claimed for locks that it does not want any more",
        "What a task wants stays the same until it is claimed.",
        "tasks_app/pool/locks/declared.py",
        " AND p.locks = w.locks",
        "",
        f"{DECLARED}what_it_wants_changes_before_its_claim_and_it_is_left",
    ),
    mutant(
        "a run that holds none of its locks",
        "The claim makes the run a holder, for everybody who asks.",
        "tasks_app/runtime/flow_control/admission.py",
        "    grant_declared(connection, claimed, lines, now=now)\n",
        "",
        f"{DECLARED}locks_of_other_code_and_of_tasks_exclude_each_other",
    ),
    mutant(
        "an end that wakes nobody in line",
        "The end of a run wakes who waits for its locks.",
        "tasks_app/runtime/flow_control/admission.py",
        "wake_lock_lines(connection, lines, now=now) if lines else []",
        "[]",
        "tests/runtime/flow_control/test_declared_locks.py::"
        "test_the_end_of_a_run_wakes_the_next_at_once",
    ),
    mutant(
        "lock without its control row",
        "Who decides about a resource locks its row first.",
        ACQUIRE,
        "ORDER BY r.resource FOR NO KEY UPDATE OF r",
        "ORDER BY r.resource",
        f"{RACES}the_second_waits_for_the_first_and_sees_what_it_took",
    ),
    mutant(
        "lock judged by what was seen before the wait for it",
        "Who decides by one statement takes nothing if somebody decided meanwhile.",
        ACQUIRE,
        "USING (resource, version)",
        "USING (resource)",
        f"{RACES}who_decides_at_once_takes_nothing_decided",
    ),
    mutant(
        "lock whose line leaves no trace on what was free",
        "Who stands in line for a group writes all of its control rows.",
        ACQUIRE,
        "WHERE r.resource = w.resource AND {enters}",
        "WHERE r.resource = w.resource AND v.granted",
        f"{RACES}who_decides_at_once_takes_nothing_decided",
    ),
    mutant(
        "lock granted before it is on the disk",
        "A grant waits for the disk.",
        ACQUIRE,
        "CASE WHEN NOT v.granted THEN {NO_FLUSH} END",
        "{NO_FLUSH}",
        f"{RACES}only_a_grant_waits_for_the_disk",
    ),
    mutant(
        "lock past those who wait for it",
        "Who comes first goes first.",
        ACQUIRE,
        "NOT d.dead AND h.id < coalesce(",
        "false AND h.id < coalesce(",
        f"{VERBS}TestTheLine::test_readers_that_come_and_go_let_a_waiting_writer_in",
    ),
    mutant(
        "lock taken from the living, too",
        "Only what is over is taken over, judged when it is locked.",
        ACQUIRE,
        "AND h.token <> :token AND {DEAD}\n        FOR UPDATE",
        "AND h.token <> :token\n        FOR UPDATE",
        f"{VERBS}TestLeases::test_only_what_is_over_is_taken",
    ),
    mutant(
        "lock that outlives its run",
        "The locks of a run end with it.",
        "tasks_app/pool/locks/holders.py",
        "(h.task_id IS NOT NULL AND NOT EXISTS (",
        "(false AND NOT EXISTS (",
        f"{VERBS}TestRunsOfTasks::test_the_locks_of_a_run_end_with_it",
    ),
    mutant(
        "lock taken over beneath a guard",
        "Under an open guard nobody takes over.",
        HOLD,
        "\n    FOR KEY SHARE",
        "",
        f"{RACES}an_open_guard_stops_take_overs_not_renewals",
    ),
    mutant(
        "lock whose guard keeps renewals out",
        "Under an open guard renewals go on.",
        HOLD,
        "FOR KEY SHARE",
        "FOR UPDATE",
        f"{RACES}an_open_guard_stops_take_overs_not_renewals",
    ),
    mutant(
        "lock released before its writes are visible",
        "What a handler wrote and its locks end with one commit.",
        "tasks_app/runtime/locks/run_locks.py",
        "lock.release(self._access.connection)",
        "lock.release()",
        f"{HANDLERS}what_it_wrote_and_its_locks_end_with_one_commit",
    ),
    mutant(
        "lock waited for by who holds another",
        "Nobody who holds waits.",
        "tasks_app/runtime/locks/client.py",
        "if held and self._wait_s:",
        "if False:",
        "tests/runtime/locks/test_locks.py::TestOnline::test_who_holds_may_not_wait_for_more",
    ),
    mutant(
        "lock given back in silence",
        "A release wakes the next in line.",
        "tasks_app/runtime/locks/lock.py",
        "        self.end()\n        wake_next(self.database, self.resources)\n",
        "        self.end()\n",
        f"{WAKE_UPS}a_release_wakes_the_next_in_line_and_only_it",
    ),
    mutant(
        "lock that wakes all who wait",
        "Only the first in line is woken, and who gets along with it.",
        "tasks_app/pool/locks/acquire.py",
        "(h.fence IS NOT NULL OR q.holder_id < p.holder_id)",
        "h.fence IS NOT NULL",
        "tests/pool/test_locks.py::test_the_first_in_line_is_told_and_nobody_behind_it",
    ),
    mutant(
        "lock waited for without a look first",
        "Who has joined a line looks once, since nobody was told of what was released meanwhile.",
        "tasks_app/runtime/locks/lock.py",
        "if told or passed_by or not answer or not _is_hindered(database, ask):",
        "if told or passed_by:",
        f"{WAKE_UPS}a_release_as_somebody_joins_is_not_missed",
    ),
    mutant(
        "lock on a row without its fence",
        "A flag that was taken over is not its old holder's.",
        "tasks_app/pool/locks/row_locks.py",
        "columns.lock_fence == fence, ",
        "",
        "tests/runtime/locks/test_row_locks.py::TestFlags::"
        "test_an_expired_flag_is_taken_over_and_its_old_holder_refused",
    ),
    mutant(
        "locks: release at once",
        "A release in a transaction is one if that commits.",
        "tasks_app/runtime/locks/lock.py",
        "            self._released_in = connection.get_transaction()\n            return\n",
        "            self.end()\n            return\n",
        "tests/runtime/locks/test_locks.py::TestOnline::test_a_release_that_is_rolled_back_is_none",
        "tests/runtime/locks/test_locks.py::TestOnline::test_a_release_undone_is_renewed_again",
    ),
    mutant(
        "locks: released is not lost",
        "A renewal does not take for lost what a commit has released.",
        "tasks_app/runtime/locks/lock.py",
        "            self._ended, self._released_in = bool(gone), None\n",
        "            self._released_in = None\n",
        "tests/runtime/locks/test_locks.py::TestOnline::"
        "test_a_renewal_does_not_take_what_was_released_by_a_commit_for_lost",
    ),
)
