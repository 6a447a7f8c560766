"""Flows, each time without one of their rules."""

from __future__ import annotations

from dev.torture.mutants.change import Change, mutant

SQL = "migrations/baseline/flows.sql"
EVENTS = "migrations/baseline/events.sql"
GROUPS = "tasks_app/pool/task_groups.py"
AMEND = "tasks_app/pool/tasks/amend.py"
RERUN = "tasks_app/pool/flow_rerun.py"
UNDO = "tests/runtime/api/test_undo.py::test_"
TESTS = "tests/pool/test_flows.py::test_"
AGAIN = "tests/pool/test_flow_rerun.py::test_"
WAYS = f"{TESTS}each_way_out_of_the_pool_releases_what_waits"
SCRIPTS = f"{TESTS}a_step_with_open_needs_waits_whatever_else_is_done"
OTHERS = f"{TESTS}what_an_end_means_for_all_others"
RACES = "tests/pool/test_races_of_flows.py::test_"
MEETINGS = f"{RACES}two_that_meet_at_a_step_act_in_turn"
BACK = f"{TESTS}a_run_goes_back_until_its_needs_are_met"
EVENT_RACES = "tests/pool/test_races_of_events.py::test_"
MAPS = "tests/runtime/api/test_maps.py::test_"
IN_ONE = f"{TESTS}what_ends_and_comes_back_in_one_statement"

FLOWS = (
    mutant(
        "flow: an end that releases nothing",
        "The statement that ends a step releases what waits for it.",
        GROUPS,
        "            THEN {before} >= 0 END)",
        "            THEN {before} < 0 END)",
        WAYS,
    ),
    mutant(
        "flow: a release that is not read",
        "The statement that moves rows reads what it releases.",
        "tasks_app/pool/fragments/move_rows.py",
        "SELECT id, NULL, NULL, queue, wait_s FROM started",
        "SELECT id, NULL, NULL, queue, wait_s FROM called",
        WAYS,
    ),
    mutant(
        "flow: an end with effects that releases later",
        "Effects, the end of a step and what it releases are one commit.",
        "tasks_app/pool/runs/settle_success.py",
        "        FROM started s)",
        "        FROM called s)",
        f"{RACES}nobody_sees_an_end_without_what_it_releases",
    ),
    mutant(
        "flow: ends before all rows have moved",
        "Ends of steps change rows that the statement moves, too: they come last.",
        GROUPS,
        "            THEN {before} >= 0 END)",
        "            THEN true END)",
        IN_ONE,
    ),
    mutant(
        "flow: a step that ends twice",
        "A step ends once, until it is requeued.",
        SQL,
        "    WHERE s.task_id = of_task AND s.ended IS NULL\n    RETURNING",
        "    WHERE s.task_id = of_task\n    RETURNING",
        OTHERS,
    ),
    mutant(
        "flow: a requeued step that does not wait",
        "A requeued step waits for what it needs.",
        SQL,
        "followers || ended.step);",
        "followers);",
        f"{SCRIPTS}[cancelled and requeued]",
    ),
    mutant(
        "flow: a released step that does not wait again",
        "What has not started waits again for a need that is requeued.",
        SQL,
        "followers || ended.step);",
        "ARRAY[ended.step]);",
        f"{SCRIPTS}[what was released and has not started waits again]",
    ),
    mutant(
        "flow: a requeued need that is not counted",
        "What waits counts a need that is requeued.",
        SQL,
        "SET waits_for = p.waits_for + sign(p.waits_for)::integer",
        "SET waits_for = p.waits_for",
        f"{SCRIPTS}[a need that was met is open again]",
        f"{MEETINGS}[a requeue of a success and an end-commit]",
    ),
    mutant(
        "flow: a step that is not needed and waits again",
        "A step that is not needed stays so when a need of it is requeued.",
        SQL,
        "AND s.step = n.step AND s.ended IS NULL OFFSET 0) AS s;\n    PERFORM",
        "AND s.step = n.step OFFSET 0) AS s;\n    PERFORM",
        f"{OTHERS}[a cancelled step whose need is requeued is not needed again]",
    ),
    mutant(
        "flow: a held step that is not held any more once it waits again",
        "A hold survives that a need is open again.",
        EVENTS,
        "* CASE WHEN p.held_due_at IS NULL THEN 1 ELSE -1 END",
        "* 1",
        f"{SCRIPTS}[what was released and is held waits again]",
    ),
    mutant(
        "flow: a result that is not kept",
        "The flow keeps the result of each step.",
        SQL,
        "SET ended = how, result = its_result,",
        "SET ended = how, result = NULL,",
        f"{TESTS}a_result_is_kept_as_long_as_the_flow",
    ),
    mutant(
        "flow: a step that cannot start holds up what waits for it",
        "What needs a step that is not needed is not needed either.",
        SQL,
        "        EXIT WHEN ended_steps IS NULL;",
        "        EXIT;",
        f"{OTHERS}[unneeded steps of unneeded steps]",
    ),
    mutant(
        "flow: a step for a failure that waits for ever",
        "A step that needs a failure is not needed after a success.",
        SQL,
        "IN (('success', 'failure'), (",
        "IN ((",
        WAYS,
    ),
    mutant(
        "flow: a held step that its needs release",
        "A held step stays held when its needs are met.",
        SQL,
        "        due_at = CASE WHEN p.waits_for = ",
        "        due_at = CASE WHEN abs(p.waits_for) = ",
        f"{SCRIPTS}[a hold survives]",
        also=(
            Change(
                SQL,
                "        scan_at = CASE WHEN p.waits_for = ",
                "        scan_at = CASE WHEN abs(p.waits_for) = ",
            ),
            Change(
                SQL,
                "        held_due_at = CASE WHEN p.waits_for = ",
                "        held_due_at = CASE WHEN abs(p.waits_for) = ",
            ),
        ),
    ),
    mutant(
        "flow: needs that are counted away from a held step",
        "An end takes one need off a held step, too.",
        SQL,
        "p.waits_for - sign(p.waits_for)::integer * numbers",
        "p.waits_for - numbers",
        f"{SCRIPTS}[a hold survives]",
        f"{MEETINGS}[a hold and the last end-commit]",
    ),
    mutant(
        "flow: a failure that stops what cleans up after it",
        "Cancel leaves steps alone that need a failure.",
        SQL,
        "WHERE n.flow_id = of_flow AND n.after <> 'success'",
        "WHERE n.flow_id = of_flow AND false",
        f"{TESTS}cancel_asks_what_runs_to_stop_unless_it_needs_a_failure",
    ),
    mutant(
        "flow: a delay that counts from the creation",
        "The delay of a step counts from its release.",
        SQL,
        "at + coalesce(s.delay, '0')",
        "at",
        f"{TESTS}a_delay_counts_from_the_release",
    ),
    mutant(
        "flow: run now before the needs are met",
        "Run now does nothing to a step with open needs.",
        AMEND,
        """\
        f"p.due_at > {NOW} AND {_HAS_NO_NEEDS}",
    ),
    BulkAction.RESCHEDULE""",
        """\
        f"p.due_at > {NOW}",
    ),
    BulkAction.RESCHEDULE""",
        f"{SCRIPTS}[run now does nothing]",
    ),
    mutant(
        "flow: a release that is taken for a need",
        "A step that is released keeps waiting for its needs.",
        AMEND,
        "    due_at = CASE WHEN {_HAS_NO_NEEDS} THEN {_GIVEN_BACK} ELSE p.due_at END,\n"
        "    scan_at = CASE WHEN {_HAS_NO_NEEDS} THEN {_GIVEN_BACK} ELSE p.scan_at END,",
        "    due_at = {_GIVEN_BACK},\n    scan_at = {_GIVEN_BACK},",
        f"{SCRIPTS}[a release is no need]",
    ),
    mutant(
        "flow: a run that goes back and does not wait",
        "A run that goes back until its needs are met counts those that are open.",
        SQL,
        "    PERFORM task_flow_put_off(of_step.flow_id, ARRAY[of_step.step]);",
        "    PERFORM task_flow_put_off(of_step.flow_id, ARRAY[]::text[]);",
        f"{BACK}[needs that are open-one]",
    ),
    mutant(
        "flow: a run that goes back without the lock of its flow",
        "Needs are counted under the lock of the flow, so that no end is missed.",
        "tasks_app/pool/fragments/move_rows.py",
        'skip_locked_groups("true" if awaits_needs else ENDS)',
        "skip_locked_groups(ENDS)",
        f"{RACES}a_settle_of_many_leaves_a_run_that_waits_while_its_flow_is_busy",
    ),
    mutant(
        "flow: items that a map creates again",
        "A map that runs again creates no items again.",
        "tasks_app/runtime/api/maps.py",
        "    if not items:",
        "    if True:",
        f"{MAPS}a_map_that_is_requeued_creates_no_items_again",
    ),
    mutant(
        "flow: steps that do not wait",
        "A step with open needs waits from the moment when it is entered.",
        SQL,
        "    PERFORM task_flow_put_off(flow, waiting || ARRAY(",
        "    PERFORM task_flow_put_off(flow, ARRAY[]::text[] || ARRAY(",
        f"{SCRIPTS}[a hold between two ends]",
    ),
    mutant(
        "event: who begins to wait does not lock it",
        "Who sends an event waits for who begins to wait for it.",
        EVENTS,
        "WHERE e.key = each FOR SHARE;",
        "WHERE e.key = each;",
        f"{EVENT_RACES}who_sends_waits_for_who_begins_to_wait[known-commit]",
    ),
    mutant(
        "event: a sender without the lock of the flow",
        "Ends of steps, requeues and events of one flow act in turn.",
        EVENTS,
        "ORDER BY g.id FOR NO KEY UPDATE;",
        "ORDER BY g.id;",
        f"{EVENT_RACES}two_that_meet_at_a_step_act_in_turn"
        "[the event and a requeue of what was cancelled-commit]",
    ),
    mutant(
        "event: a plain task that goes back while its event is sent",
        "A run of no flow starts again if somebody sends its event at that moment.",
        SQL,
        "    IF locked = cardinality(keys) THEN",
        "    IF true THEN",
        f"{EVENT_RACES}no_event_is_missed_by_a_run_that_goes_back[plain task-one-need0-commit]",
    ),
    mutant(
        "event: one that moves a date of others",
        "An event brings only that date forward which its time-out has set.",
        EVENTS,
        "      AND coalesce(p.held_due_at, p.due_at) = befores[array_position(ids, p.id)];",
        "      AND true;",
        "tests/pool/test_events.py::test_a_step_waits_for_events_whatever_else_is_done"
        "[an operator's date stays]",
    ),
    mutant(
        "event: a second one that counts",
        "The first event with a key counts.",
        EVENTS,
        "    WHERE e.sent_at IS NULL;",
        "    WHERE true;",
        "tests/pool/test_events.py::test_the_first_one_that_is_sent_counts",
    ),
    mutant(
        "flow: a rerun that counts what ended after the flow did",
        "A flow that succeeded has counted each step as a success.",
        RERUN,
        "good = [True] * (len(again) + len(items))",
        "pass",
        f"{AGAIN}what_came_back_after_the_end_may_run_again",
    ),
    mutant(
        "flow: a rerun that trusts the end of an item",
        "An item that was not needed, and was cancelled before a scan skipped it, is a failure.",
        RERUN,
        "good.append(state in GOOD if state else item.ended != StepEnd.FAILURE)",
        "good.append(item.ended != StepEnd.FAILURE)",
        "tests/runtime/api/test_maps.py::test_an_item_that_was_cancelled_unneeded_is_counted_back",
    ),
    mutant(
        "flow: a rerun that looks once",
        "A task that was requeued while a rerun looked is found.",
        RERUN,
        "left = list(connection.execute(_MOVED, moved).scalars())",
        "left = []",
        f"{AGAIN}a_task_that_moves_while_a_rerun_looks_is_found",
    ),
    mutant(
        "flow: a rerun that takes no note of later ends",
        "A step that was skipped, and ran after its flow had succeeded, has succeeded.",
        RERUN,
        "connection.execute(_ENTER_LATER_ENDS, {",
        "connection.execute(_LOCK, {",
        f"{AGAIN}a_step_that_was_skipped_and_ran_after_the_end_has_succeeded",
    ),
    mutant(
        "flow: a rerun of what can never start",
        "A step with a need that can still never be met stays skipped.",
        "tasks_app/domain/rerun.py",
        "        if step.end is not StepEnd.UNNEEDED or not any(",
        "        if not any(() for _ in ()) or not any(",
        f"{AGAIN}a_step_and_what_hangs_on_it_come_back[not what can still never start]",
    ),
    mutant(
        "flow: a rerun of what was undone",
        "A step whose needs are taken back does not run again.",
        "tasks_app/domain/rerun.py",
        "    if is_undone(order) and not undoes(name):\n",
        "    if False:\n",
        f"{UNDO}a_flow_that_is_undone_runs_no_step_again",
    ),
    mutant(
        "flow: a failure that cancels the undoing",
        "A step that cannot undo another one stops the rest until it is mended.",
        SQL,
        "    UPDATE task_group g SET when_failed = 'wait' WHERE g.id = of_flow;\n",
        "",
        f"{UNDO}its_key_is_taken_until_it_is_undone",
    ),
    mutant(
        "flow: an undo that does not wait for what runs",
        "A step that runs while its flow is undone is undone if it succeeds.",
        "tasks_app/runtime/api/undo.py",
        "    if running:\n",
        "    if False:\n",
        f"{UNDO}what_runs_is_undone_if_it_succeeds",
    ),
    mutant(
        "flow: an undo in any order",
        "What needed a step is undone before it.",
        "tasks_app/domain/undo.py",
        "                before[name].append(step.name)",
        "                _ = before[name]",
        f"{UNDO}a_flow_that_succeeded_is_undone_from_its_end",
    ),
)
