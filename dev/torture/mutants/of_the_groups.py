"""Groups, checkpoints, kept steps and chunks, each time without one of their rules."""

from __future__ import annotations

from dev.torture.mutants.change import mutant

COUNT = "tasks_app/pool/task_groups.py"
MAKE = "tasks_app/pool/task_groups.py"
SUCCEED = "tasks_app/pool/runs/settle_success.py"
REQUEUE = "tasks_app/pool/tasks/requeue.py"
PROGRESS = "tasks_app/pool/tasks/run_records.py"
GROUPS = "tests/pool/test_task_groups.py::test_"
KEPT = "tests/pool/tasks/test_requeue.py::test_"
CHECKPOINT = "tasks_app/runtime/handlers/checkpoint.py"
KEEPS = "tasks_app/runtime/handlers/steps.py"
STEPS = "tests/runtime/handlers/test_steps.py::test_"

GROUPS_AND_PROGRESS = (
    mutant(
        "group counted from what the statement saw",
        "Who counts adds to what others have committed meanwhile.",
        COUNT,
        "SET succeeded = g.succeeded + ",
        "SET succeeded = (SELECT s.succeeded FROM {GROUP} s WHERE s.id = g.id) + ",
        f"{GROUPS}two_that_meet_at_a_group_are_counted_in_turn[the last two]",
    ),
    mutant(
        "group that counts after its end",
        "A group that succeeded counts nobody any more, and calls once.",
        COUNT,
        "_COUNTS = f\"g.outcome IS DISTINCT FROM '{State.SUCCEEDED}'\"",
        '_COUNTS = "true"',
        f"{GROUPS}what_ends_after_the_call_is_not_counted",
    ),
    mutant(
        "member settled as a plain task",
        "Each end of a member is counted.",
        "tasks_app/pool/runs/settle.py",
        '_PLAIN = f"{_ENDS} AND p.batch_id IS NULL"',
        "_PLAIN = _ENDS",
        f"{GROUPS}the_last_success_calls_then",
    ),
    mutant(
        "who ends the last member with effects tells nobody of the callback",
        "A callback is hinted at by who ends the last member.",
        "tasks_app/runtime/handler_db/ends.py",
        "one.ending.started.extend(started_by_answer(",
        "list(started_by_answer(",
        "tests/runtime/hints/test_hints.py::test_the_last_member_hints_at_a_callback[with effects]",
    ),
    mutant(
        "member that ends like all others",
        "Each end of a member is counted.",
        SUCCEED,
        "    if settlement.task is None or settlement.task.group_id is not None:\n",
        "    if False:\n",
        f"{GROUPS}the_last_success_calls_then",
        "tests/runtime/ends/test_contract.py::"
        "test_effects_stand_if_and_only_if_the_outcome_does[plain-group]",
    ),
    mutant(
        "member held before its group",
        "Who may wait locks the group first and then the member.",
        COUNT,
        '        ORDER BY g.id FOR NO KEY UPDATE)\n    """',
        '        ORDER BY g.id)\n    """',
        f"{GROUPS}an_open_cancellation_holds_up_members_and_no_other",
    ),
    mutant(
        "settle that waits for a group",
        "A settle of many waits for nobody.",
        COUNT,
        "ORDER BY g.id FOR NO KEY UPDATE SKIP LOCKED)",
        "ORDER BY g.id FOR NO KEY UPDATE)",
        f"{GROUPS}a_group_settle_waits_for_nobody_and_leaves_members_of_a_busy_group",
    ),
    mutant(
        "member of a busy group moved all the same",
        "Members of a group that somebody counts stay for the next time.",
        COUNT,
        "OR batch_id = ANY((SELECT ids FROM busy)::bigint[]) IS NOT TRUE)",
        "OR true)",
        f"{GROUPS}a_group_settle_waits_for_nobody_and_leaves_members_of_a_busy_group",
    ),
    mutant(
        "requeue that is not taken back",
        "A member that runs again has not ended.",
        REQUEUE,
        "take_back(connection, found.batch_id, task_id, was)",
        "pass",
        f"{GROUPS}requeue_takes_a_failure_back",
    ),
    mutant(
        "failure that calls again although it was told",
        "A group calls once for each time that it is over.",
        COUNT,
        " AND c.was_open\n",
        "\n",
        f"{GROUPS}with_fail_fast_it_is_open_again_once_no_failure_is_left",
    ),
    mutant(
        "reopened group that calls under the old id",
        "A group that is open again calls under a new id.",
        COUNT,
        "    while reopened:\n",
        "    while False:\n",
        f"{GROUPS}a_group_that_failed_is_open_again_once_a_failed_member_is_requeued",
    ),
    mutant(
        "outer group that forgets a reopened one",
        "An outer group waits for the callback of a reopened inner one.",
        COUNT,
        "        if row is None or row.part_of is None:",
        "        if True:",
        f"{GROUPS}an_outer_group_waits_for_a_reopened_inner_one",
    ),
    mutant(
        "callback of the other end",
        "A group that failed calls on_failure.",
        COUNT,
        "WHEN '{State.FAILED}' THEN c.on_failure END AS given)",
        "WHEN '{State.FAILED}' THEN c.then_row END AS given)",
        f"{GROUPS}other_ends_count_as_they_say",
    ),
    mutant(
        "inner group that nobody waits for",
        "The outer group waits for the callback of the inner one.",
        MAKE,
        "        extend_group(connection, group.part_of, [callback_id])",
        "        assert callback_id",
        f"{GROUPS}an_outer_group_waits_for_the_callback_of_an_inner_one",
    ),
    mutant(
        "inner callback that is nobody's member",
        "The outer group counts the callback of the inner one.",
        COUNT,
        "            c.part_of, t.due_at",
        "            CAST(NULL AS bigint), t.due_at",
        f"{GROUPS}an_outer_group_waits_for_the_callback_of_an_inner_one",
    ),
    mutant(
        "inner group in one that is over",
        "Nothing becomes part of a group that is over.",
        MAKE,
        'if not connection.execute(text(f"SELECT {EXTEND}(',
        'if None is connection.execute(text(f"SELECT {EXTEND}(',
        f"{GROUPS}an_inner_group_that_comes_late_is_refused",
    ),
    mutant(
        "groups forgotten while they go on",
        "What is forgotten was over.",
        "tasks_app/pool/task_groups.py",
        "g.outcome IS NOT NULL AND g.counted_at",
        "g.counted_at",
        f"{GROUPS}groups_that_were_over_long_ago_are_forgotten",
    ),
    mutant(
        "checkpoint without the token",
        "Who has lost the fence keeps nothing.",
        PROGRESS,
        " AND p.lease_token = :token\n",
        " AND (p.lease_token = :token OR true)\n",
        f"{KEPT}a_stale_fence_keeps_nothing",
    ),
    mutant(
        "checkpoint whose row is not held",
        "From the fence to the COMMIT nobody else has the row.",
        PROGRESS,
        "FOR NO KEY UPDATE OF p),",
        "),",
        f"{KEPT}nobody_else_has_the_row_until_the_commit_no_renewal_waits",
    ),
    mutant(
        "step without the fence",
        "Who has lost the fence keeps no step.",
        PROGRESS,
        "FROM held h WHERE CAST(:step AS text) IS NOT NULL)",
        "FROM (SELECT CAST(:id AS bigint) AS id) h WHERE CAST(:step AS text) IS NOT NULL)",
        f"{KEPT}a_stale_fence_keeps_nothing",
    ),
    mutant(
        "step that later attempts do not look for",
        "A kept step is not called again.",
        KEEPS,
        "self._is_read = given is not None or run.is_first",
        "self._is_read = True",
        f"{STEPS}a_kept_step_is_not_called_again_and_returns_the_same[plain]",
    ),
    mutant(
        "call after a conflict that begins anew",
        "What a call of the handler has kept is found by the next one, in one attempt, too.",
        CHECKPOINT,
        "return self.task.fence.attempt == 1 and not self.has_kept",
        "return self.task.fence.attempt == 1",
        f"{STEPS}a_call_after_a_conflict_finds_what_the_one_before_it_kept[plain]",
    ),
    mutant(
        "step that commits within another",
        "What a function does is one commit, with its result.",
        CHECKPOINT,
        "        self._check_outside()\n        self._inside = name",
        "        self._inside = name",
        f"{STEPS}nothing_commits_while_a_function_runs[step-plain]",
    ),
    mutant(
        "sleep that begins anew when it is disturbed",
        "A sleep ends at the instant that was kept.",
        KEEPS,
        "left_s = since + (seconds or 0) - time.monotonic()",
        "left_s = seconds if since + seconds > time.monotonic() else 0",
        f"{STEPS}who_is_woken_early_sleeps_on_until_the_same_instant[plain]",
    ),
    mutant(
        "chunk whose place comes before its effects",
        "A page's effects and its place are one commit.",
        CHECKPOINT,
        """\
            yield page
            after = self._advance()
            self._point.commit()
""",
        """\
            after = self._advance()
            self._point.commit()
            yield page
""",
        "tests/runtime/handlers/test_chunks.py::test_the_next_attempt_goes_on_behind_the_last_commit",
    ),
)
