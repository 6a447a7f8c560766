"""The end of a run: outcome and COMMIT, each time without one of their rules."""

from __future__ import annotations

from dev.torture.mutants.change import mutant

CONNECTIONS = "tasks_app/runtime/handler_db/handler_connections.py"
END = "tasks_app/runtime/handler_db/ends.py"
DRIVER = "tasks_app/runtime/handler_db/handler_driver.py"
SETTLER = "tasks_app/runtime/execution/settler.py"
SHARED = "tests/runtime/execution/test_late_commits.py::"
RUNNER = "tasks_app/runtime/execution/runner.py"
ENDINGS = "tasks_app/runtime/execution/completion.py"
BULK = "tasks_app/runtime/execution/bulk_call.py"
CALLS = "tests/runtime/execution/test_bulk_calls.py::test_"
SUCCEED = "tasks_app/pool/runs/settle_success.py"
ODD = "tests/runtime/handler_db/test_handler_connections.py::test_"
CONFLICT = f"{ODD}a_conflict_of_transactions_is_tried_again_uncharged_a_few_times"
EFFECTS = "tests/runtime/test_effects.py::"
ENDS = "tests/runtime/execution/test_completion.py::test_"
LATE = "tests/runtime/test_late_writes.py::test_"
HISTORY = "tests/runtime/test_history.py::test_"
CONTRACT = "tests/runtime/ends/test_contract.py::test_effects_stand_if_and_only_if_the_outcome_does"
UNANSWERED = "tests/runtime/ends/test_contract.py::test_an_unanswered_commit"

ENDS_OF_RUNS = (
    mutant(
        "effect and outcome in two transactions",
        "What a handler writes commits with its outcome, or not at all.",
        CONNECTIONS,
        "            with self.lock:\n                self.wait(self.end(permit))\n",
        "            super().commit()\n            with self.lock:\n"
        "                self.wait(self.end(permit))\n",
        f"{CONTRACT}[plain-row]",
    ),
    mutant(
        "a lost fence is overlooked",
        "Who lost his claim rolls back.",
        SUCCEED,
        "FROM (SELECT) AS one LEFT JOIN gone ON true WHERE {_LOST_ELSE}\n",
        "FROM gone\n",
        f"{EFFECTS}test_effects_roll_back_when_the_lease_was_lost_meanwhile",
        f"{CONTRACT}[plain-row]",
        f"{CONTRACT}[async-group]",
        f"{CONTRACT}[plain-none]",
    ),
    mutant(
        "whatever refuses an outcome is a lost fence",
        "A claim is lost where a last word says so, and by no other error.",
        SUCCEED,
        'return error.sqlstate == "TA002"',
        "return error.sqlstate is not None",
        f"{ENDS}an_outcome_that_is_refused_is_its_handlers_failure_and_no_lost_lease",
    ),
    mutant(
        "any statement of an end finds a lost fence",
        "A claim is lost where the settle fails, and not what comes before it.",
        END,
        "        if any(name == last.name for last in one.last) and is_fence_lost(error):",
        "        if is_fence_lost(error):",
        f"{CONTRACT}[plain-row]",
    ),
    mutant(
        "settled again after a COMMIT without an answer",
        "Its effects may be gone: it is given back, never settled a second time.",
        ENDINGS,
        "        self._settle(task, end.run.with_sub_status(failure))\n\n    def _write_outcome",
        "        self._settle(task, settlement)\n\n    def _write_outcome",
        f"{UNANSWERED}_stands_or_not[plain-row-lose_request]",
    ),
    mutant(
        "an end that was broken off goes on",
        "Nobody knows which answers are still to come.",
        END,
        "            pgconn.finish()  # what is still to come is not known\n",
        "",
        f"{ENDS}of_an_end_that_is_broken_off_nobody_reads_the_rest",
    ),
    mutant(
        "what a rollback dropped counts as prepared",
        "psycopg drops what is prepared after a ROLLBACK, ours too.",
        END,
        "        if name is None:\n            self.names.clear()\n",
        "",
        f"{ENDS}a_rollback_takes_what_is_prepared_and_the_next_run_does_not_miss_it",
    ),
    mutant(
        "locks of a run in a row are never given back",
        "What a run took ends with it.",
        RUNNER,
        "                context.end_locks()\n",
        "",
        f"{ENDS}locks_that_a_run_in_a_row_left_are_given_back",
    ),
    mutant(
        "a conflict in a handler is charged at once",
        "Where two transactions were in each other's way, both are run again.",
        ENDINGS,
        "if ours and self",
        "if untried and ours and self",
        f"{CONFLICT}[in the handler-5-SUCCEEDED-0]",
    ),
    mutant(
        "a conflict at a commit is charged at once",
        "Where two transactions were in each other's way, both are run again.",
        ENDINGS,
        "if self._policy.runs_again(end, error):",
        "if False:",
        f"{CONFLICT}[at its commit-5-SUCCEEDED-0]",
    ),
    mutant(
        "conflicts are tried again for ever",
        "A handler is called again five times, and then charged.",
        "tasks_app/runtime/execution/completion.py",
        "end.repeats >= REPEATS",
        "end.repeats >= 2 * REPEATS",
        CONFLICT,
    ),
    mutant(
        "a COMMIT of libpq's is not seen",
        "A run whose transaction is gone has failed for good, regardless of who ended it.",
        "tasks_app/runtime/handler_db/handler_driver.py",
        "        if self._was_open and self.pgconn.transaction_status == _IDLE:\n"
        "            self.ended = True\n        return",
        "        return",
        "tests/runtime/handler_db/test_handler_connections.py::test_a_commit_through_libpq_is_seen",
    ),
    mutant(
        "late writes are sent behind the outcome's fence alone",
        "What is written late is judged with the run, and commits with its outcome.",
        END,
        "            names += self._send_write(write, is_known=write.name in known)\n",
        "",
        f"{CONTRACT}[plain-row]",
    ),
    mutant(
        "a run may leave a temporary table to those behind it",
        "What a run leaves in its session is never met by the next.",
        END,
        "        before += [_SHARES] * shares\n",
        "",
        f"{LATE}nothing_of_a_run_stays_for_the_next[CREATE TEMPORARY TABLE effect"
        " (task_id bigint, note text)]",
    ),
    mutant(
        "nothing flushes the log behind a pipeline",
        "Nobody hears of a success before it is durable.",
        END,
        "    _FLUSHES: FLUSH,\n",
        '    _FLUSHES: b"SELECT 1",\n',
        "tests/runtime/test_late_writes.py::TestTheLog::test_who_is_told_is_on_disk",
    ),
    mutant(
        "where the last one fails nothing flushes the log",
        "Nobody hears of a success before it is durable.",
        END,
        "        if self.pgconn.transaction_status == TransactionStatus.INERROR:",
        "        if False:",
        "tests/runtime/test_late_writes.py::TestTheLog::test_one_flush_is_behind_all[4]",
    ),
    mutant(
        "late commits go on however long they take",
        "Renewals of leases wait for no commit.",
        SETTLER,
        "            if time.monotonic() >= ends:\n",
        "            if False:\n",
        "tests/runtime/test_late_writes.py::TestOneThatWaits::"
        "test_many_that_wait_hold_up_no_renewals",
    ),
    mutant(
        "a message ends with late commits that there was no time for",
        "A message ends when every outcome is written.",
        RUNNER,
        "            elif not more:\n",
        "            else:\n",
        "tests/runtime/test_late_writes.py::TestOneThatWaits::"
        "test_a_message_ends_when_all_that_is_slow_is_written",
    ),
    mutant(
        "a session without what was prepared in it is used again",
        "One late write that fails lets its own run fail, and no other.",
        END,
        "        if isinstance(error, _OF_WHAT_IS_PREPARED):",
        "        if False:",
        "tests/runtime/test_late_writes.py::TestOneThatFails::"
        "test_one_that_drops_what_is_prepared_does[used]",
    ),
    mutant(
        "an outcome that is refused holds up late commits",
        "An outcome that the database refuses stops no other for long.",
        SETTLER,
        "            if remedy_for(refusal) is not Remedy.SPARE:\n",
        "            if False:\n",
        f"{SHARED}test_an_outcome_that_is_refused_holds_up_none",
    ),
    mutant(
        "late commits wait without an end",
        "Renewals of leases wait for no commit.",
        SETTLER,
        "steps = in_time(driver.end_each(ends), self._late_patience_s)\n",
        "steps = driver.end_each(ends)\n",
        f"{SHARED}TestTheDeadline::test_what_takes_long_is_sent_again_alone",
    ),
    mutant(
        "what was not answered is sent again beside others",
        "A commit that cannot be told from its neighbours is tried alone.",
        SETTLER,
        "            and not (group[0].unsure or left[0].unsure)\n",
        "",
        f"{SHARED}TestTheDeadline::test_what_takes_long_is_sent_again_alone",
    ),
    mutant(
        "a lost fence after a lost answer is a success",
        "A success is counted by the run that had it.",
        SETTLER,
        "            report_lost(lost)\n",
        "            count_settled([lost], {lost.fence.task_id: State.SUCCEEDED})\n"
        "            report_lost(lost)\n",
        f"{SHARED}TestACommitWithoutAnAnswer::test_is_no_success_where_somebody_else_has_the_task",
    ),
    mutant(
        "a COMMIT that fails hides those behind it",
        "A success is counted once it has committed.",
        END,
        "                ended.append(self._failure(one, names, answers))\n",
        "                why = self._failure(one, names, answers)\n"
        "                ended.append(NotTriedError() if any(ended) else why)\n",
        f"{SHARED}test_a_commit_that_fails_loses_no_success_behind_it",
    ),
    mutant(
        "any text of a handler is sent together with a COMMIT",
        "What no server has called a write is sent alone, and judged by its command tag.",
        DRIVER,
        "all(write.query in PROVEN for write in writes)",
        "True",
        f"{LATE}an_end_of_the_transaction_that_its_text_hides_is_found_out[row]",
    ),
    mutant(
        "a handler may SET by ctx.write",
        "ctx.write takes one statement that writes.",
        "tasks_app/runtime/handler_db/statements.py",
        "if not _WRITES.match(tags[0])",
        "if not tags",
        f"{LATE}what_fails_or_is_not_one_statement_that_writes_fails_alone[row]",
    ),
    mutant(
        "an end that is half prepared",
        "What an end prepared before it failed is known to the next one of its session.",
        END,
        "            self.names.add(name)\n",
        "        self.names.update(_OURS, (last.name,))\n",
        "tests/runtime/handler_db/test_handler_connections.py::"
        "test_an_end_that_cannot_be_prepared_fails_one_run[False]",
    ),
    mutant(
        "what was refused waits behind a slow task",
        "What is refused is committed before anything slow begins.",
        RUNNER,
        "            self.write_all(self._settler.flush_quietly, before=run)\n",
        "            self._settler.flush_quietly()\n",
        "tests/runtime/test_late_writes.py::TestOneThatWaits::"
        "test_it_is_committed_before_anything_slow_begins[slow]",
    ),
    mutant(
        "a process that the handler forked writes into nothing",
        "What is accepted commits with the task.",
        "tasks_app/runtime/handlers/context.py",
        "        if os.getpid() != self._process:\n            raise RuntimeError(_FORKED)\n"
        "        return",
        "        return",
        f"{LATE}in_a_process_that_the_handler_forked_nothing_is_accepted",
    ),
    mutant(
        "a thread left behind writes into what is being committed",
        "What a handler was told it had written commits with its outcome.",
        RUNNER,
        "                    context.close()  # what the handler left running is too late\n",
        "",
        "tests/runtime/test_late_writes.py::test_a_thread_left_behind_writes_or_is_refused",
    ),
    mutant(
        "late writes keep what the handler goes on changing",
        "What a handler asked to write is what it gave.",
        "tasks_app/runtime/handler_db/statements.py",
        "        return dict(parameters)\n",
        "        return parameters\n",
        "tests/runtime/test_late_writes.py::TestOneThatIsHostile::"
        "test_what_a_handler_changes_later_is_not_written",
    ),
    mutant(
        "outcomes are written without the late writes",
        "What a handler writes commits with its outcome, or not at all.",
        SETTLER,
        "[Write(*w) for w in s.writes]",
        "[]",
        f"{CONTRACT}[plain-row]",
        f"{CONTRACT}[async-row]",
    ),
    mutant(
        "late writes wait for whoever holds a row",
        "None of those that share a round trip waits for another's lock.",
        "tasks_app/runtime/db/database.py",
        '"statement_timeout": "100"',
        '"statement_timeout": "0"',
        "tests/runtime/test_late_writes.py::TestOneThatWaits::test_others_do_not_wait_for_it[row]",
    ),
    mutant(
        "a write that ends its connection is sent with others for ever",
        "What may have ended a connection is tried alone.",
        SETTLER,
        "            if settlement.unsure:\n",
        "            if False:\n",
        f"{LATE}a_backend_that_dies_of_a_write_charges_nobody",
    ),
    mutant(
        "late writes are committed when the run's locks are gone",
        "What a run took ends behind its commit.",
        ENDINGS,
        "run.returned is None and not context.has_locks",
        "run.returned is None",
        f"{LATE}locks_are_held_until_it_is_committed",
    ),
    mutant(
        "a refused outcome is forgotten by a child that stops",
        "A child that stops gives back what it has not written.",
        "tasks_app/runtime/execution/in_flight.py",
        "                self._return([claim])\n            else:\n",
        "                self._move(self._claims.pop(claim.fence), ANSWER)\n            else:\n",
        "tests/runtime/test_late_writes.py::TestOneThatWaits::test_a_child_that_stops_gives_it_back",
    ),
    mutant(
        "no history: what was locked for a moment is kept",
        "Where it is said that no row is kept, none is.",
        "tasks_app/pool/runs/settle.py",
        "    kept = [s for s in settlements if s.is_kept]",
        "    kept = [s for s in settlements if s.fence.task_id not in done]",
        "tests/pool/runs/test_settle.py::test_what_was_locked_for_a_moment_leaves_no_row_either",
    ),
    mutant(
        "no history: members of a group leave no row",
        "What a group counts, and what its callback may read, is kept.",
        "tasks_app/domain/handlers/settlement.py",
        "if level is HistoryLevel.ALL or task.group_id is not None:",
        "if level is HistoryLevel.ALL:",
        f"{HISTORY}results_of_members_are_kept",
    ),
    mutant(
        "no history: attempts stay",
        "What leaves no row leaves nothing else.",
        "tasks_app/pool/fragments/move_rows.py",
        "attempts AS (DELETE FROM {ATTEMPT} a WHERE a.task_id = {ids}),",
        "attempts AS (SELECT 1),",
        f"{CONTRACT}[plain-none]",
    ),
    mutant(
        "no history: nobody is told",
        "Of successes that left no row it is counted that they did, so that pages tell.",
        "tasks_app/runtime/statistics.py",
        "                if done and not one.is_kept:",
        "                if done and one.is_kept is None:",
        f"{HISTORY}they_are_counted",
    ),
    mutant(
        "bulk: the error of one item is that of all",
        "A call that raises is undone, and each item runs alone: only the guilty one is charged.",
        BULK,
        "if isinstance(error, Outcome) or is_outage(spec, error):",
        "if error:",
        f"{CALLS}a_poisoned_item_harms_nobody",
    ),
    mutant(
        "bulk: one fence stands for all",
        "Each item of a call is settled under a fence of its own.",
        BULK,
        "transaction.conclude(*settlements)",
        "transaction.conclude(settlements[0])",
        f"{CALLS}one_call_runs_many_and_one_commit_ends_them",
        f"{CALLS}a_lost_fence_undoes_the_call_and_the_others_run_again",
    ),
    mutant(
        "bulk: effects of a call without a success",
        "Where no item succeeded, nothing that the call wrote is kept.",
        BULK,
        "        if not succeeded or not transaction.active:",
        "        if not transaction.active:",
        f"{CALLS}if_none_succeeds_nothing_is_committed",
    ),
    mutant(
        "bulk: a cancelled item runs again",
        "Whose run was cancelled is not called once more with the others of its call.",
        BULK,
        "if spec.cancellable and end.run.cancelled:",
        "if end is None:",
        f"{CALLS}a_cancel_of_one_ends_the_call_and_the_others_run",
    ),
    mutant(
        "bulk: exclusive tasks are called with others",
        "If it kills the process, it alone can be the cause.",
        "tasks_app/runtime/execution/in_flight.py",
        "return not task.runs_alone and task.timeout_ms is None",
        "return task.timeout_ms is None",
        "tests/runtime/execution/test_inflight.py::"
        "test_one_call_takes_no_exclusive_task_and_none_with_limits_of_its_own",
    ),
    mutant(
        "bulk: a lost fence among many is overlooked",
        "If one of them is lost, nothing of the call is kept.",
        SUCCEED,
        "CASE WHEN (SELECT count(*) FROM held) < cardinality($1)",
        "CASE WHEN (SELECT count(*) FROM held) > cardinality($1)",
        f"{CALLS}a_lost_fence_undoes_the_call_and_the_others_run_again",
    ),
)
